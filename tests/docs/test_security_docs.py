"""docs/security.md: every port and secret of Docker Compose stands in its tables, and what it names is there."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
FILES = ("docker-compose.yml", "compose.metrics.yml", "compose.tls.yml")


def column(heading: str) -> set[str]:
    """The words in the first column of the table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"(?m)^\| (.*?) \|", section)
    return set(re.findall(r"[a-z0-9_]+", " ".join(cells)))


def compose(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((ROOT / name).read_text(encoding="utf-8"), Loader=_Loose)
    return found


class _Loose(yaml.SafeLoader):
    """Also reads what only Compose knows, such as ``!reset``."""


_Loose.add_multi_constructor("!", lambda loader, tag, node: None)


@pytest.mark.parametrize("name", FILES)
def test_every_port_of_compose_is_in_the_table(name: str) -> None:
    found: set[str] = set()
    for service in compose(name)["services"].values():
        found |= {port.rpartition(":")[2] for port in service.get("ports") or []}  # None: reset
        words = str([service.get("command"), service.get("environment"), service.get("healthcheck")])
        found |= set(re.findall(r"(?:port[= ]|//(?:127\.0\.0\.1|objects):)([1-9][0-9]{3,4})\b", words))
    assert found
    assert found <= column("Who reaches what")


def test_every_port_of_a_secrets_url_is_in_the_table() -> None:
    script = (ROOT / "scripts" / "secrets").read_text(encoding="utf-8")
    ports = {str(urlsplit(url).port) for url in re.findall(r'"(\w+://[^"]*)"', script.replace("$", ""))}
    assert ports == {"5432", "6379"}
    assert ports <= column("Who reaches what")


def test_every_secret_of_compose_is_in_the_table() -> None:
    secrets = set(compose("docker-compose.yml")["secrets"])
    assert "owner_url" in secrets
    assert secrets <= column("What each secret opens")


def test_what_it_names_is_there() -> None:
    """Modules, tests and settings that stop something."""
    for name in set(re.findall(r"`((?:omni_jobs|workers)(?:\.\w+)+)`", PAGE)):
        path = ROOT / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
    for name in set(re.findall(r"`(tests/[\w./]+)`", PAGE)):
        assert (ROOT / name).exists(), name
