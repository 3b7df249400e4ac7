"""``scripts/compose-test``: docker-compose.yml on a real container engine. Needs the standard library alone."""
