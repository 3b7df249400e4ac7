"""A job's life: submit, claim, complete; and what else changes its stage runs."""
