"""The plumbing of HTTP: connections, bodies, heads, ids, errors. It knows nothing of jobs."""
