"""The Dockerfile, and the images that docker-compose.yml builds with it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.compose_file import DOCKERFILE, ROOT, ours

BIN = Path(sys.prefix) / "bin"


def test_dockerfile_lint() -> None:
    result = subprocess.run([BIN / "hadolint", DOCKERFILE], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_one_service_builds_each_image(services: dict[str, dict[str, Any]]) -> None:
    """Two that build one image in parallel fail to store it; an image of ours is in no registry to be pulled from."""
    built = [service["image"] for service in services.values() if "build" in service]
    assert sorted(built) == sorted({service["image"] for service in ours(services).values()})
    for name, service in ours(services).items():
        assert service["pull_policy"] == "never", name


def test_build_targets_are_stages_of_the_dockerfile(services: dict[str, dict[str, Any]]) -> None:
    targets = set(re.findall(r"(?m)^FROM \S+ AS (\S+)$", DOCKERFILE.read_text()))
    builds = {service["image"]: service["build"]["target"] for service in services.values() if "build" in service}
    assert set(builds.values()) <= targets
    assert all(image == f"omni-jobs-{target}" for image, target in builds.items())


def test_driver_that_the_lock_needs_is_required_and_said() -> None:
    """CUDA 13.0 is in NVIDIA's drivers from 580 on (release notes of the CUDA toolkit)."""
    (cuda,) = re.findall(r"(?m)^nvidia-cuda-runtime==(\d+\.\d+)\.", (ROOT / "locks/worker-cuda.txt").read_text())
    assert cuda == "13.0", "a new CUDA: look up its least driver, and say it everywhere"
    assert f'NVIDIA_REQUIRE_CUDA="cuda>={cuda}"' in DOCKERFILE.read_text()
    for name in ("README.md", "docs/operations/compose.md", "docker-compose.yml"):
        text = (ROOT / name).read_text()
        assert f"CUDA {cuda}" in text, name
        assert re.search(r"driver 580 or newer", text), name


def test_dockerfile_takes_what_is_there() -> None:
    content = DOCKERFILE.read_text()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    for sources in re.findall(r"(?m)^COPY ((?!--from).+) \S+$", content):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert {f"!{source.split('/')[0]}", f"!{source}"} & set(ignored), f"{source} does not reach the build"


def test_the_labels_say_what_pyproject_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="(.*?)"', DOCKERFILE.read_text()))
    assert found["version"] == project["version"]
    assert found["licenses"] == project["license"]
    assert found["title"] == project["name"]


def test_the_images_take_no_file_without_a_hash() -> None:
    """But torch for CPUs: each index has builds of its own."""
    commands = re.findall(r"(?:uv )?pip (?:install|sync) .*", DOCKERFILE.read_text())
    fetching = [command for command in commands if "--no-index" not in command]
    assert len(fetching) == 5
    without = [command for command in fetching if "--require-hashes" not in command]
    assert without == ["uv pip sync /locks/worker-cpu-torch.txt"]


@pytest.mark.parametrize("target", ["api", "worker", "worker-cpu"])
def test_images_run_as_a_user(target: str) -> None:
    _, stage = re.split(rf"(?m)^FROM \S+ AS {target}\n", DOCKERFILE.read_text())
    stage = re.split(r"(?m)^FROM ", stage)[0]
    (user,) = re.findall(r"(?m)^USER (\d+):\d+$", stage)
    assert int(user) >= 1000
    assert stage.rindex("\nRUN ") < stage.rindex("\nUSER "), "the packages belong to root"
