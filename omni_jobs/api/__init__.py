"""The HTTP API and its server. ``create_app`` is in :mod:`omni_jobs.api.app`; the routes of each noun have a file."""
