"""The servers of remote stages, as settings name them."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from omni_jobs.errors import ConfigError
from omni_jobs.servers import Server, check_base_url, check_host

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


@pytest.mark.parametrize(
    "url",
    [
        *("http://host", "https://host.example.com:8443/v1/", "http://my_service:8000", "http://127.0.0.1:1"),
        *(
            "http://[::1]:8000/v1",
            "http://[2001:db8::1]",
            "http://[fe80::1%25eth0]:80",
            "http://xn--bcher-kva.example.",
        ),
    ],
)
def test_a_base_url(url: str) -> None:
    check_base_url(url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "hidden", "//hidden", "ftp://hidden", "http://", "http:///hidden", "http://:80", "http://hidden:0"),
        *("http://hidden:99999", "http://hidden:port", "http://hidden:-1", "http://hidden:80:80", "http://::1/hidden"),
        *("http://[::1", "http://[::1]80/hidden", "http://[hidden]:80", "http://[127.0.0.1]/hidden", "http://::1]/"),
        *("http://a..b/hidden", "http://.hidden", "http://-hidden", "http://1.2.3.400/hidden", f"http://{'a' * 64}"),
        *("http://hid den", "http://hidden\n", "http://hid\x00den", "http://hidden\\@host", "http://h\u2100dden"),
        *("http://hidden?", "http://host?key=hidden", "http://host/#hidden", "http://host:\uff18\uff10/hidden"),
        *("http://u:hidden@host", "http://hidden@host", "http://u:hidden@[::bad/x", "http://u:hidden@ho:st:80/"),
    ],
)
def test_what_is_no_base_url_is_refused_unseen(url: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 — the class of a validator's errors
        check_base_url(url)
    assert "hidden" not in str(caught.value)


def test_a_user_may_stand_before_a_host_where_that_is_wanted() -> None:
    check_base_url("http://user:p%40ss@[::1]:8000/jobs", may_have_user=True)


@pytest.mark.parametrize(
    ("given", "host"),
    [("::1", "::1"), ("[::1]", "::1"), ("::", "::"), ("127.0.0.1", "127.0.0.1"), ("localhost", "localhost")],
)
def test_a_host_loses_its_brackets(given: str, host: str) -> None:
    assert check_host(given) == host


@pytest.mark.parametrize(
    "host", ["[127.0.0.1]", "[::1", "::1]", "::1:8000x", "host:80", "ho st", "http://host", "1.2.3"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"not a host|brackets"):
        check_host(host)
