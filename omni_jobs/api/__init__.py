"""HTTP. ``create_app`` is in :mod:`omni_jobs.api.app`; routes stand in one file per noun."""
