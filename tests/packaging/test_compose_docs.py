"""What docs/operations/ shows of Compose: overrides, ports and commands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.docs.pages import blocks, pages
from tests.packaging.compose_file import ROOT


def overrides() -> list[str]:
    """Without Compose's own tag, which is for how files are merged."""
    found = [block for block in blocks(pages("operations"), "yaml") if block.startswith("services:")]
    return [block.replace("!override ", "") for block in found]


@pytest.mark.parametrize("override", overrides(), ids=["own pipeline", "another card", "several hosts"])
def test_overrides_fit(override: str, services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "docker-compose.override.yml"
    file.write_text(override)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    for name, service in yaml.safe_load(override)["services"].items():
        assert service.get("extends", {"service": name})["service"] in services
        assert set(service.get("environment", {})) <= {*services["thinker"]["environment"], "OMNI_JOBS_SERVERS"}


def test_ports_of_the_docs_are_those_of_the_urls(services: dict[str, dict[str, Any]], secrets: Path) -> None:
    published = {
        name: int(port.rpartition(":")[2])
        for override in overrides()
        for name, service in yaml.safe_load(override)["services"].items()
        for port in service.get("ports", [])
    }
    urls = [(secrets / name).read_text().strip() for name in ("database_url", "broker_url")]
    urls.append(services["api"]["environment"]["OMNI_JOBS_S3_ENDPOINT_URL"])
    assert published == {urlsplit(url).hostname: urlsplit(url).port for url in urls}


def named_services(line: str) -> list[str]:
    """The services that a `docker compose` line names."""
    words = iter(shlex.split(re.split(r" [<>|] ", line)[0], comments=True))
    for word in words:
        if word == "--profile":
            next(words)
        elif word in ("up", "stop", "build", "exec", "run"):
            rest = [each for each in words if not each.startswith("-")]
            rest = [
                each.partition("=")[0] for each in rest if each != "sh"
            ]  # of --scale NAME=N, and of --entrypoint sh
            return rest[:1] if word in ("exec", "run") else rest
    return []


def test_commands_of_the_docs_name_services(services: dict[str, dict[str, Any]]) -> None:
    lines = [line for block in blocks(pages("operations"), "bash") for line in block.splitlines()]
    found = {name for line in lines if "docker compose " in line for name in named_services(line)}
    assert {"api", "rescuer", "thinker", "talker", "code2wav", "postgres", "objects", "migrate"} <= found
    more = {name for path in ROOT.glob("compose.*.yml") for name in re.findall(r"(?m)^  (\w+):$", path.read_text())}
    assert found <= services.keys() | more
    assert "scripts/secrets" in lines
    assert any(line.startswith("cp .env.example .env") for line in lines)
