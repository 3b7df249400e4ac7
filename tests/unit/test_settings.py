"""Settings that cannot work are refused where they are read, and give no secret away."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import ConfigError
from omni_jobs.settings import Settings, read_settings, unknown_variables

WRONG_BROKERS = [
    "bogus://:sekret@host/0",
    "redis://:sekret@host:99999/0",
    "redis://:sekret@host:port/0",
    "redis://:sekret@/0",
    "redis://:sekret@host/zero",
    "redis://:sekret@host/0?nonsense=1",
    "REDIS://:sekret@host/0",
    "sekret@host:6379",
    "",
]


@pytest.mark.parametrize("url", WRONG_BROKERS)
def test_a_broker_url_that_is_none_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OMNI_JOBS_BROKER_URL", url)
    with pytest.raises(ConfigError) as caught:
        read_settings()
    assert caught.value.field == "OMNI_JOBS_BROKER_URL"
    assert "sekret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://:p%40ss@[::1]:6379/15",
        "rediss://u:p@host:6380/0",
        "rediss://h?ssl_cert_reqs=none&ssl_ca_certs=/ca",
    ],
)
def test_a_broker_url_of_a_redis_is_taken(url: str) -> None:
    assert Settings(broker_url=url).broker_url.get_secret_value() == url  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "command",
    [
        ["omni_jobs.cli", "api", "--port", "0"],
        ["omni_jobs.cli", "rescuer"],
        ["omni_jobs.cli", "worker", "-p", "echo", "-s", "first"],
        ["celery", "-A", "workers.app", "worker", "-P", "custom", "-Q", "echo.first"],
    ],
    ids=["api", "rescuer", "worker", "celery"],
)
def test_no_process_starts_with_a_bad_broker_url(command: list[str]) -> None:
    environment = {
        **os.environ,
        "OMNI_JOBS_BROKER_URL": WRONG_BROKERS[0],
        "CELERY_CUSTOM_WORKER_POOL": "workers.consumer.pool:StagePool",
    }
    ended = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode in (1, 2)
    assert "OMNI_JOBS_BROKER_URL" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "sekret" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("body", "held", "is_taken"),
    [
        (None, None, True),
        (1 << 30, None, False),
        (None, 64 << 20, False),
        (None, 68 << 20, True),
        (1 << 20, 4 << 20, False),
        (1 << 20, 5 << 20, True),
    ],
)
def test_the_bytes_held_are_enough_for_a_longest_line_of_a_bulk(
    monkeypatch: pytest.MonkeyPatch, body: int | None, held: int | None, is_taken: bool
) -> None:
    """Else it would be told to come back for ever."""
    for name, value in (("BODY", body), ("HELD_BODY", held)):
        if value is not None:
            monkeypatch.setenv(f"OMNI_JOBS_MAX_{name}_BYTES", str(value))
    if is_taken:
        read_settings()
        return
    with pytest.raises(ConfigError, match="OMNI_JOBS_MAX_BODY_BYTES") as caught:
        read_settings()
    assert caught.value.field == "OMNI_JOBS_MAX_HELD_BODY_BYTES"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("API_HOST", "[::1"),
        ("API_HOST", "sekret:8000"),
        ("API_HOST", "http://sekret"),
        ("PUBLIC_URL", "http://u:sekret@host"),
        ("PUBLIC_URL", "http://[::1]80/sekret"),
        ("BROKER_URL", "redis://:sekret@ho st/0"),
        ("BROKER_URL", "rediss://:sekret@host/0?ssl_cert_reqs=sekret"),
        ("BROKER_URL", "rediss://:sekret@host/0?ssl_cert_reqs="),
        ("BROKER_URL", "rediss://host/0?sekret=1"),
        ("BROKER_URL", "rediss://host/0?socket_timeout=5"),
        ("SERVERS", '{"one": {"url": "http://u:sekret@[::bad"}}'),
    ],
)
def test_a_wrong_url_or_host_names_its_setting_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"OMNI_JOBS_{variable}", value)
    with pytest.raises(ConfigError) as caught:
        read_settings()
    assert (caught.value.field or "").startswith(f"OMNI_JOBS_{variable}")
    assert "sekret" not in str(caught.value)


@pytest.mark.parametrize(
    "variable",
    ["DATABASE_URL", "DATABASE_URL_FILE", "DATA_DIR", "STAGE_CONFIGS", "MODELS", "API_KEY", "URL", "LEASE_S"],
)
def test_an_empty_variable_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """It comes of a shell's variable or a secret that is not there, and would choose SQLite, say, without a word."""
    monkeypatch.setenv(f"OMNI_JOBS_{variable}", "")
    with pytest.raises(ConfigError, match="is empty") as caught:
        read_settings()
    assert caught.value.field == f"OMNI_JOBS_{variable}"


def test_an_empty_variable_is_refused_in_small_letters_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read in any case."""
    monkeypatch.setenv("omni_jobs_database_url", "")
    with pytest.raises(ConfigError, match="is empty") as caught:
        read_settings()
    assert caught.value.field == "OMNI_JOBS_DATABASE_URL"


def test_an_empty_list_is_as_if_not_set_and_an_empty_host_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TRUSTED_PROXIES", "PIPELINES", "API_HOST"):
        monkeypatch.setenv(f"OMNI_JOBS_{variable}", "")
    found = read_settings()
    assert (found.trusted_proxies, found.pipelines, found.api_host) == (("127.0.0.1", "::1"), None, "")


def test_an_empty_share_of_a_card_is_as_if_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose gives it so where .env names no share for the stage."""
    monkeypatch.setenv("OMNI_JOBS_GPU_MEMORY_UTILIZATION", "")
    found = read_settings()
    assert found.gpu_memory_utilization is None
    assert "OMNI_JOBS_GPU_MEMORY_UTILIZATION" not in found.to_environment()
    monkeypatch.setenv("OMNI_JOBS_GPU_MEMORY_UTILIZATION", "0.5")
    assert read_settings().gpu_memory_utilization == 0.5
    monkeypatch.setenv("OMNI_JOBS_GPU_MEMORY_UTILIZATION", " ")
    with pytest.raises(ConfigError) as caught:
        read_settings()
    assert caught.value.field == "OMNI_JOBS_GPU_MEMORY_UTILIZATION"


def test_an_empty_text_that_is_the_default_is_not_handed_on() -> None:
    assert "OMNI_JOBS_BROKER_KEY_PREFIX" not in Settings(broker_key_prefix="").to_environment()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_on_loopback_nobody_needs_a_key(host: str) -> None:
    assert Settings(api_host=host).resolved_auth == "off"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "10.0.0.1", "jobs.example.com", ""])
def test_elsewhere_the_auth_must_be_set(host: str) -> None:
    with pytest.raises(ConfigError, match="OMNI_JOBS_AUTH"):
        _ = Settings(api_host=host).resolved_auth
    for auth in ("off", "keys"):
        assert Settings(api_host=host, auth=auth).resolved_auth == auth  # type: ignore[arg-type]
    assert Settings(api_host=host, auth="proxy", tenant_header="X-Tenant").resolved_auth == "proxy"


@pytest.mark.parametrize("given", [{"auth": "proxy"}, {"tenant_header": "X"}, {"auth": "keys", "tenant_header": "X"}])
def test_the_tenants_header_goes_with_the_proxy(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="OMNI_JOBS_TENANT_HEADER"):
        _ = Settings(**given).resolved_auth


def test_a_misspelt_variable_is_named_with_the_one_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unknown_variables(
        {
            "OMNI_JOBS_KEEP_ARTEFACTS_S": "60",
            "OMNI_JOBS_DATABSE_URL_FILE": "/run/url",
            "OMNI_JOBS_ZZZZ": "",
            "omni_jobs_lease": "5",
            "omni_jobs_url": "http://h",
            "HOME": "/",
        }
    ) == [
        "nothing reads the variable OMNI_JOBS_DATABSE_URL_FILE: is OMNI_JOBS_DATABASE_URL_FILE meant?",
        "nothing reads the variable OMNI_JOBS_KEEP_ARTEFACTS_S: is OMNI_JOBS_KEEP_ARTIFACTS_S meant?",
        "nothing reads the variable OMNI_JOBS_ZZZZ",
        "nothing reads the variable omni_jobs_lease: is OMNI_JOBS_LEASE_S meant?",
        "nothing reads the variable omni_jobs_url: is OMNI_JOBS_URL meant?",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "OMNIJOBS_API_PORT",
        "OMNI_JOB_API_PORT",
        "OMNI_JOBS__API_PORT",
        "OMNI-JOBS_API_PORT",
        "OMNI_JOBS.API_PORT",
        "ONMI_JOBS_API_PORT",
        "OMNI_JOBSAPI_PORT",
        "omnijobs_api_prot",
    ],
)
def test_a_misspelt_prefix_is_told(name: str) -> None:
    assert unknown_variables({name: "1"}) == [f"nothing reads the variable {name}: is OMNI_JOBS_API_PORT meant?"]


def test_a_variable_of_others_is_not_told() -> None:
    others = ("OMNI_JOB_ID", "OMNI_ENGINE_PID", "OMNI_JOBS", "OMNIJOBSERVER_HOME", "JOBS_API_PORT", "OMNI_API_PORT")
    assert unknown_variables(dict.fromkeys(others, "1")) == []


def test_no_variable_that_is_read_is_told_to_be_unknown() -> None:
    settings = Settings(broker_url="redis://h/0", database_url="sqlite:///x", pipelines=("echo",), auth="off")  # type: ignore[arg-type]
    files = {f"OMNI_JOBS_{name}_FILE": "x" for name in ("BROKER_URL", "DATABASE_URL", "API_KEY")}
    client = {"OMNI_JOBS_URL": "http://h", "OMNI_JOBS_API_KEY": "k", "omni_jobs_device": "cpu"}
    assert unknown_variables(settings.to_environment() | files | client) == []


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (("omni_jobs.cli", "migrate"), "omni-jobs"),
        (("omni_jobs.cli", "pipelines", "list"), "omni-jobs"),
        (("omni_jobs.cli", "worker", "-p", "echo", "-s", "first", "--log-level", "wrong"), "celery worker"),
        (("celery", "-A", "workers.app", "report"), "celery worker"),
    ],
)
def test_a_command_tells_of_a_misspelt_variable_once(arguments: tuple[str, ...], program: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OMNI_JOBS_DATA_DIR": str(tmp_path / "data"), "OMNI_JOBS_LEESE_S": "5"}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    told = f"{program}: nothing reads the variable OMNI_JOBS_LEESE_S: is OMNI_JOBS_LEASE_S meant?"
    assert done.stderr.splitlines().count(told) == 1, done.stderr
