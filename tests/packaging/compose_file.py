"""docker-compose.yml and what stands beside it, as the tests read them."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"
EXAMPLE = ROOT / ".env.example"
REMOTE = ROOT / "deploy" / "remote" / "remote.yaml"
SECRETS = ROOT / "scripts" / "secrets"


def example(text: str) -> list[tuple[str, str]]:
    """Name and value of each line, commented out or not."""
    return re.findall(r"(?m)^#?([A-Z0-9_]+)=(.*)$", text)


def variables() -> dict[str, str]:
    """Those of .env.example, filled in."""
    lines = EXAMPLE.read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {name: value for name, value in given.items() if value}


def ours(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services.items() if service["image"].startswith("omni-jobs-")}


def lasting(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of ours that serve, rather than prepare."""
    return {name: service for name, service in ours(services).items() if service["restart"] != "no"}


def workers(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: service for name, service in services.items() if service.get("command", [])[:2] == ["omni-jobs", "worker"]
    }


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Target → source, read-only ones marked so in the source."""
    found = {}
    for volume in service.get("volumes", []):
        if isinstance(volume, str):
            source, target = volume.split(":")
            found[target] = source
        else:
            found[volume["target"]] = volume["source"] + (" (read-only)" if volume.get("read_only") else "")
    return found
