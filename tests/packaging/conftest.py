"""What several tests of deployments read: docker-compose.yml, and the directories that it needs."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.compose_file import COMPOSE, REMOTE, ROOT, SECRETS, variables
from tests.packaging.interpolation import interpolated_tree


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """As Compose reads it: merged and interpolated."""
    found: dict[str, Any] = interpolated_tree(yaml.safe_load(COMPOSE.read_text()), variables())
    return found


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


@pytest.fixture(scope="module")
def stage_configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the pipeline that the profile remote needs."""
    directory = tmp_path_factory.mktemp("configs") / "stage_configs"
    shutil.copytree(ROOT / "stage_configs", directory)
    shutil.copy(REMOTE, directory)
    return directory


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that scripts/secrets makes."""
    directory = tmp_path_factory.mktemp("host") / "secrets"
    result = subprocess.run([SECRETS, directory], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return directory
