"""A job's life: submit, claim, report; and what else changes its stage runs."""
