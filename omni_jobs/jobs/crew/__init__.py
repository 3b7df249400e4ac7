"""The workers: their leases, and the rescue of what lost ones held."""
