"""omni_jobs.stack.environments: what each process of the embedded stack gets of the operator's environment."""

import os
from pathlib import Path

import pytest

from omni_jobs.settings import Settings
from omni_jobs.stack.environments import (
    bare_environment,
    plain_environment,
    server_environment,
    worker_environment,
)

HARMLESS = {
    "PATH": "/usr/bin",
    "LC_ALL": "C.UTF-8",
    "SSL_CERT_FILE": "/etc/ca.pem",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_ARENA_MAX": "2",
    "HTTPS_PROXY": "http://user:secret@proxy:3128",
    "MONKEYSHINES": "3",
    "PWD": "/home/me",
    "OLDPWD": "/tmp",
    "PATIENCE": "1",
    "AUTHOR": "me",
    "REPOSITORY": "https://me@example.com/x",
}
SECRETS = {
    "HF_TOKEN": "secret",
    "OPENAI_API_KEY": "secret",
    "db_password": "secret",
    "GOOGLE_APPLICATION_CREDENTIALS": "/secret.json",
    "SSH_PASSPHRASE": "secret",
    "SENTRY_DSN": "secret",
    "DATABASE_URL": "postgresql://me:secret@host/db",
    "CACHE_URL": "redis://:secret@host/0",
    "STRIPE_API_KEYS": "secret",
    "SIGNING_KEY2": "secret",
    "TOKEN1": "secret",
    "MYSQL_PWD": "secret",
    "CI_CREDS": "secret",
    "GITHUB_PAT": "secret",
    "REGISTRY_AUTH": "secret",
    "SERVICE_JWT": "secret",
    "SESSION_COOKIE": "secret",
    "SLASHED_URL": "postgresql://me:sec/ret@host/db",
    "GIT_REMOTE": "https://ghp_0123456789abcdef0123@github.com/me/it",
    "ODBC": "Driver=PG;Uid=me;Pwd=secret",
    "LIBPQ": "host=db user=me password=secret",
    "JSON_SETTINGS": '{"token": "secret"}',
}
OBJECTS = {"AWS_SECRET_ACCESS_KEY": "secret", "AWS_PROFILE": "mine"}
POSTGRESQL = {"PGPASSWORD": "secret", "PGSSLMODE": "require"}
OURS = {"OMNI_JOBS_API_KEY": "secret", "OMNI_JOBS_URL": "http://there", "omni_jobs_servers": "{}"}
ENVIRONMENT = HARMLESS | SECRETS | OBJECTS | POSTGRESQL | OURS


@pytest.fixture(autouse=True)
def no_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OMNI_JOBS_"):
            monkeypatch.delenv(name)


def settings(tmp_path: Path, **more: object) -> Settings:
    servers = {"local": {"url": "http://127.0.0.1:8000/v1", "key": "secret"}}
    return Settings.model_validate({"data_dir": tmp_path, "servers": servers, "api_key": "secret", **more})


def test_valkey_and_the_sentinel_get_nothing_of_the_operator(tmp_path: Path) -> None:
    assert bare_environment(ENVIRONMENT) == {name: HARMLESS[name] for name in ("PATH", "LC_ALL", "SSL_CERT_FILE")}


def test_a_server_gets_no_secret_that_it_does_not_use(tmp_path: Path) -> None:
    found = server_environment(ENVIRONMENT, settings(tmp_path))
    assert found == HARMLESS | {"OMNI_JOBS_DATA_DIR": str(tmp_path)}


def test_a_worker_gets_the_servers_of_its_stages_and_what_a_model_may_read(tmp_path: Path) -> None:
    found = worker_environment(ENVIRONMENT, settings(tmp_path))
    assert "secret" in found.pop("OMNI_JOBS_SERVERS")
    assert found == HARMLESS | SECRETS | {"OMNI_JOBS_DATA_DIR": str(tmp_path)}


@pytest.mark.parametrize("of", [server_environment, worker_environment])
def test_s3_and_postgresql_get_theirs(tmp_path: Path, of: type) -> None:
    found = of(ENVIRONMENT, settings(tmp_path, storage_url="s3://bucket"))
    assert OBJECTS.items() <= found.items()
    assert not POSTGRESQL.keys() & found.keys()
    assert of(ENVIRONMENT, settings(tmp_path, storage_url="S3://bucket")).items() >= OBJECTS.items()
    found = of(ENVIRONMENT, settings(tmp_path, database_url="postgresql://host/db"))
    assert POSTGRESQL.items() <= found.items()
    assert not OBJECTS.keys() & found.keys()


def test_a_builder_of_checkpoints_gets_no_setting_and_no_secret() -> None:
    assert plain_environment(ENVIRONMENT) == HARMLESS
