"""docker-compose.yml: its schema, that every name in it exists, which no schema sees, and what each container has."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from omni_jobs.settings import Settings
from tests.packaging.compose_file import COMPOSE, DOCKERFILE, lasting, mounts, ours


def test_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def dependencies(service: dict[str, Any]) -> dict[str, str]:
    return {name: how["condition"] for name, how in service.get("depends_on", {}).items()}


def has_healthcheck(service: dict[str, Any]) -> bool:
    return "test" in service.get("healthcheck", {})


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


def test_up_can_wait_for_every_service(services: dict[str, dict[str, Any]]) -> None:
    """`up --wait` takes a check that is disabled for an error, and an image's would hold for services that only run."""
    assert "HEALTHCHECK" not in DOCKERFILE.read_text()
    for name, service in services.items():
        assert has_healthcheck(service) == (service["restart"] != "no"), name
        assert "disable" not in service.get("healthcheck", {}), name


def test_every_service_of_ours_waits_for_database_bucket_and_broker(services: dict[str, dict[str, Any]]) -> None:
    one_shot = {"migrate", "bucket", "worker-image", "worker-cpu-image"}
    assert set(ours(services)) - set(lasting(services)) == one_shot
    for name, service in lasting(services).items():
        assert set(dependencies(service)) == {"migrate", "bucket", "valkey"}, name


def test_volumes_configs_and_secrets_are_declared_and_used(
    compose: dict[str, Any], services: dict[str, Any], secrets: Path
) -> None:
    sources = {source for service in services.values() for source in mounts(service).values()}
    assert {source for source in sources if not source.startswith((".", "/"))} == set(compose["volumes"])
    for kind in ("configs", "secrets"):
        used = [part for service in services.values() for part in service.get(kind, [])]
        assert {part if isinstance(part, str) else part["source"] for part in used} == set(compose[kind])
    assert {secret["file"] for secret in compose["secrets"].values()} == {
        f"./secrets/{path.name}" for path in secrets.iterdir()
    }


def test_a_directory_that_is_missing_is_not_made(services: dict[str, dict[str, Any]]) -> None:
    """The short form of a bind mount would make it."""
    bound = 0
    for service in services.values():
        for volume in service.get("volumes", []):
            if isinstance(volume, str):
                assert not volume.startswith((".", "/")), volume
            elif volume["type"] == "bind":
                assert volume["bind"] == {"create_host_path": False}
                bound += 1
    assert bound > len(ours(services))


def test_containers_are_bounded(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert int(service["ulimits"]["nofile"]["soft"]) >= 65536, name
        assert service["logging"]["driver"] == "json-file", name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"]), name
        for mount in service.get("tmpfs", []):
            assert re.search(r"\bsize=\d+[mg]\b", mount), f"{name}: {mount}"
        short = name in {"bucket", "migrate"} or name.endswith("-image")
        assert service["restart"] == ("no" if short else "unless-stopped")
        assert "no-new-privileges:true" in service["security_opt"], name


def test_each_process_says_by_its_beats_whether_it_is_well(services: dict[str, dict[str, Any]]) -> None:
    """Without a shell, the network or a secret. A file that its check looks at is one that it may write."""
    for name, service in lasting(services).items():
        program, *words = service["healthcheck"]["test"][1:]
        assert (program, words[0]) == ("omni-jobs", "healthy"), name
        within = float(words[2]) if words[1:] else 60.0
        assert within > 3 * Settings.model_fields["heartbeat_s"].default
        beats = Path(service["environment"]["OMNI_JOBS_BEAT_FILE"])
        assert not service.get("read_only") or any(each.startswith(f"{beats.parent}:") for each in service["tmpfs"])
