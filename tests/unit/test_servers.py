"""The servers of remote stages, as settings name them."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from omni_jobs.errors import ConfigError
from omni_jobs.servers import Server

KEY = "sk-hidden-word"


def test_a_server_shows_its_key_to_nobody(tmp_path: Path) -> None:
    server = Server.model_validate_json(json.dumps({"url": "http://127.0.0.1:8000/v1/", "key": KEY}))
    assert server.url == "http://127.0.0.1:8000/v1"
    assert KEY not in repr(server) + str(server) + server.model_dump_json()
    key = server.read_key()
    assert key is not None
    assert key.get_secret_value() == KEY


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_key_is_read_from_its_file(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(KEY.encode() + end)
    key = Server(url="http://localhost", key_file=file).read_key()
    assert key is not None
    assert key.get_secret_value() == KEY


@pytest.mark.parametrize("content", [None, b"", b"\n", b"a\nb", b"a b", "schlüssel".encode(), b"a" * 10_000])
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Server(url="http://localhost", key_file=file).read_key()
    assert caught.value.field == "key_file"


def test_another_process_reads_the_same_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for server in (
        Server(url="http://localhost", key=SecretStr(KEY)),
        Server(url="https://localhost", key_file=tmp_path / "key", ca_file=tmp_path / "ca.pem"),
    ):
        assert Server.model_validate(server.to_json()) == server
    monkeypatch.chdir(tmp_path)
    assert Server(url="http://localhost", key_file=Path("key")).to_json()["key_file"] == str(tmp_path / "key")


def test_a_server_may_want_no_key() -> None:
    assert Server(url="https://[::1]:8000").read_key() is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "localhost:8000"},
        {"url": "ftp://localhost"},
        {"url": "http://"},
        {"url": "http://localhost:0"},
        {"url": "http://localhost:port"},
        {"url": f"http://me:{KEY}@localhost"},
        {"url": "http://localhost/?key=1"},
        {"url": "http://localhost/#v1"},
        {"url": "http://local host/"},
        {"url": "http://localhost/\n"},
        {"key": f"{KEY} "},
        {"key": f"{KEY}\nX: y"},
        {"key": ""},
        {"key": KEY, "key_file": "/key"},
        {"password": KEY},
    ],
)
def test_a_wrong_server_is_refused_without_its_key(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Server.model_validate({"url": "http://localhost", **wrong})
    assert KEY not in str(caught.value)
