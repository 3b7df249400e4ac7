"""The HTTP API: the routes of each noun have a file. :mod:`omni_jobs.web.app` makes an application of them."""
