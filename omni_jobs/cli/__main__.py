"""Runs the ``omni-jobs`` command as ``python -m omni_jobs.cli``."""

from omni_jobs.cli import app

if __name__ == "__main__":
    app()
