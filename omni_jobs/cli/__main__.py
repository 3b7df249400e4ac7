"""``python -m omni_jobs.cli``."""

from omni_jobs.cli import app

if __name__ == "__main__":
    app()
