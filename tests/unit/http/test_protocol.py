"""The internals of uvicorn on which omni_jobs.http.protocol relies. A version that lacks one fails here first."""

import inspect
import re
import resource
import tomllib
from importlib.metadata import version
from pathlib import Path

import httptools
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from omni_jobs.http.protocol import bounded_protocol
from omni_jobs.settings import Settings

ROOT = Path(__file__).parents[3]


def test_the_version_is_pinned_exactly() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert f"uvicorn=={version('uvicorn')}" in dependencies


def test_the_methods_that_are_extended() -> None:
    for name, parameters in {
        "connection_made": ["transport"],
        "connection_lost": ["exc"],
        "eof_received": [],
        "data_received": ["data"],
        "on_message_begin": [],
        "on_header": ["name", "value"],
        "on_headers_complete": [],
        "on_message_complete": [],
        "on_response_complete": [],
        "timeout_keep_alive_handler": [],
        "pause_writing": [],
        "resume_writing": [],
        "send_400_response": ["msg"],
        "_unset_keepalive_if_required": [],
        "_unsupported_upgrade_warning": [],
    }.items():
        assert list(inspect.signature(getattr(HttpToolsProtocol, name)).parameters) == ["self", *parameters]


def test_the_attributes_that_are_read() -> None:
    protocol = set(HttpToolsProtocol.__init__.__code__.co_names)
    assert {"transport", "flow", "parser", "loop", "cycle", "pipeline", "headers", "connections", "server_state"} <= (
        protocol
    )
    cycle = set(RequestResponseCycle.__init__.__code__.co_names)
    assert {"response_started", "response_complete", "disconnected", "message_event"} <= cycle
    # An exception of a callback ends as one that leads to send_400_response.
    assert issubclass(httptools.HttpParserCallbackError, httptools.HttpParserError)
    assert "send_400_response" in HttpToolsProtocol.data_received.__code__.co_names


def test_what_an_answer_does_with_its_connection() -> None:
    """The protocol replaces ``transport``, and sets with ``keep_alive`` whether an answer ends its connection."""
    assert {"transport", "keep_alive"} <= set(RequestResponseCycle.__init__.__code__.co_names)
    used = re.findall(r"self\.transport\.(\w+)", inspect.getsource(RequestResponseCycle))
    assert set(used) == {"write", "is_closing", "close"}
    lines = [line.strip() for line in inspect.getsource(RequestResponseCycle.send).splitlines()]
    assert lines.index("self.response_complete = True") < lines.index("self.transport.close()")
    assert lines.index("self.transport.close()") < lines.index("self.on_response()"), "closed before it is done"


def test_a_wish_for_an_upgrade_ends_the_parser_behind_the_head() -> None:
    """Even where the body follows, which the parser leaves to the other protocol."""
    parser = httptools.HttpRequestParser(object())
    head = b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as raised:
        parser.feed_data(head + b"x")
    assert raised.value.args == (len(head),)


def test_a_trailer_comes_as_a_header_after_the_head() -> None:
    events = []

    class Callbacks:
        def on_headers_complete(self) -> None:
            events.append(b"head")

        def on_header(self, name: bytes, value: bytes) -> None:
            events.append(name)

        def on_message_complete(self) -> None:
            events.append(b"end")

    parser = httptools.HttpRequestParser(Callbacks())
    parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: y\r\n\r\n")
    assert events == [b"Transfer-Encoding", b"head", b"X", b"end"]


def test_few_files_mean_few_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        protocol = bounded_protocol(Settings())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (protocol.places.most, protocol.backlog) == (100, 50)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard > 0 else 8192, hard))
    try:
        assert bounded_protocol(Settings()).places.most == Settings().max_connections
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
