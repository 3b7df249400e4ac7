import os
import sys

import pytest

from workers.runners.engine_environment import engine_environment, lent_to_engines


def test_an_engine_on_the_cpu_keeps_freed_memory_unless_the_operator_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MALLOC_TOP_PAD_", raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    found = engine_environment("cpu")
    assert found["MALLOC_TOP_PAD_"] == str(64 << 20)
    assert found["MALLOC_TRIM_THRESHOLD_"] == "131072"
    assert found["PATH"] == os.environ["PATH"]
    assert "MALLOC_TOP_PAD_" not in engine_environment("cuda")


@pytest.mark.skipif(sys.platform != "linux", reason="its loopback has another name elsewhere")
def test_the_ranks_of_an_engine_meet_on_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert engine_environment("cuda")["GLOO_SOCKET_IFNAME"] == "lo"
    with lent_to_engines("cuda"):
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")
    assert engine_environment("cuda")["GLOO_SOCKET_IFNAME"] == "eth1"


SECRETS = {
    "OMNI_JOBS_DATABASE_URL_FILE": "/run/secrets/database_url",
    "OMNI_JOBS_SERVERS": "{}",
    "omni_jobs_broker_url": "redis://:secret@broker",
    "AWS_SECRET_ACCESS_KEY": "secret",
}


def test_no_engine_gets_what_only_its_worker_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, "PGPASSWORD": "secret", "HF_TOKEN": "for the model"}.items():
        monkeypatch.setenv(name, value)
    found = engine_environment("cpu")
    assert not {*SECRETS, "PGPASSWORD"} & found.keys()
    assert found["HF_TOKEN"] == "for the model"


def test_secrets_are_hidden_while_any_engine_starts_and_then_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    first, second = lent_to_engines("cuda"), lent_to_engines("cuda")
    with first:
        second.__enter__()
    assert not SECRETS.keys() & os.environ.keys()
    second.__exit__(None, None, None)
    assert SECRETS.items() <= os.environ.items()
