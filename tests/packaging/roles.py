"""The roles of a deployment: the files of scripts/secrets that docker-compose.yml gives to the containers of each."""

import yaml

from tests.packaging.compose_file import COMPOSE

_SERVICES = {"api": "api", "rescuer": "rescuer", "worker": "echo-first", "migrate": "migrate", "bucket": "bucket"}
_FOUND = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
FILES = {role: frozenset(_FOUND[service]["secrets"]) for role, service in _SERVICES.items()}
"""The names of the files, by role. Kubernetes and systemd give the same ones to theirs."""
