"""The secrets of the services: files that scripts/secrets makes, each for the containers that read it."""

import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.packaging.compose_file import EXAMPLE, ROOT, SECRETS, example, workers

SECRET_NAME = re.compile(r"(?:^|_)(?:PASSWORD|SECRET|TOKEN|KEY|AUTH|DATABASE_URL|BROKER_URL)(?:_|$)")


def is_secret(variable: str) -> bool:
    return SECRET_NAME.search(variable) is not None and variable != "OMNI_JOBS_AUTH"  # which says keys, and is none


def test_no_secret_is_in_an_environment_or_a_command_line(services: dict[str, dict[str, Any]]) -> None:
    """Each stands in a file below /run/secrets that the service is given."""
    assert not [name for name, _ in example(EXAMPLE.read_text()) if is_secret(name)]
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            if is_secret(variable) or "SHARED_CREDENTIALS" in variable:
                assert variable.endswith("_FILE"), f"{name}: {variable}"
                assert value.startswith("/run/secrets/"), f"{name}: {variable}"
            assert not re.search(r"://[^/]*@", value), f"{name}: {variable}"
        words = yaml.safe_dump([service.get("command"), service.get("healthcheck")])
        assert not re.search(r"://[^/\s]*@|BROKER_URL|DATABASE_URL|--(pass|auth|broker)\b|-a ", words), name
        mentioned = set(re.findall(r"/run/secrets/(\w+)", yaml.safe_dump(service)))
        assert mentioned <= set(service.get("secrets", [])), name
    assert set(services["valkey"]["secrets"]) == {"valkey_users"}
    of_workers = {secret for service in workers(services).values() for secret in service["secrets"]}
    assert of_workers == {"database_url", "worker_broker_url", "worker_s3_credentials", "remote_key"}
    assert [name for name, service in services.items() if "remote_key" in service.get("secrets", [])] == ["remote-ask"]
    assert set(services["migrate"]["secrets"]) == {"owner_url", "database_url"}
    assert [name for name, service in services.items() if "owner_url" in service.get("secrets", [])] == ["migrate"]
    assert services["bucket"]["secrets"] == ["bucket_s3_credentials"]


def test_each_container_has_the_secrets_that_it_reads_and_no_others(
    compose: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    for name, service in services.items():
        files = [compose["configs"][each["source"]]["content"] for each in service.get("configs", [])]
        read = set(re.findall(r"/run/secrets/(\w+)", "\n".join([yaml.safe_dump(service), *files])))
        assert set(service.get("secrets", [])) == read, name


def test_secret_urls_name_services(services: dict[str, dict[str, Any]], secrets: Path) -> None:
    for name in ("owner_url", "database_url", "broker_url", "worker_broker_url"):
        assert urlsplit((secrets / name).read_text().strip()).hostname in services


def test_secrets_are_random_and_in_a_closed_directory(secrets: Path, tmp_path: Path) -> None:
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o444}
    other = tmp_path / "secrets"
    subprocess.run([SECRETS, other], check=True, capture_output=True)
    for path in secrets.iterdir():
        assert path.read_text() != (other / path.name).read_text(), path.name
    assert re.search(r"\b[0-9a-f]{48}$", (secrets / "postgres_password").read_text())
    for name in ("database_url", "broker_url", "worker_broker_url"):
        assert re.search(r":[0-9a-f]{48}@", (secrets / name).read_text()), name


def test_secrets_are_never_overwritten(secrets: Path) -> None:
    before = {path: path.read_text() for path in secrets.iterdir()}
    result = subprocess.run([SECRETS, secrets], capture_output=True, text=True)
    assert result.returncode == 1
    assert "must not exist yet" in result.stderr
    assert {path: path.read_text() for path in secrets.iterdir()} == before


def test_secrets_stay_out_of_git_and_of_images() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/secrets/", "/.env"} <= set(ignored)
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert kept[1] == "*"
    assert not {"!secrets", "!.env", "!scripts"} & set(kept)
