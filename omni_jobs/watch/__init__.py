"""Watch for many requests at once: one poll of all their jobs, and one computation of a value that they all read."""
