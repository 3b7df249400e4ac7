"""The program that ``scripts/demo`` runs: a user of omni-jobs, which nothing of omni-jobs imports."""
