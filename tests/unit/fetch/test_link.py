"""What a URL that a stranger wrote is read as, and what is no URL."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from omni_jobs.errors import ConfigError
from omni_jobs.fetch.failures import Blame, FetchFailed
from omni_jobs.fetch.guard import Guard
from omni_jobs.fetch.link import Link
from omni_jobs.settings import Settings

READ = {
    "http://example.org": ("http", "example.org", 80, "/", "example.org"),
    "HTTPS://Example.ORG./a?b=c#d": ("https", "example.org", 443, "/a?b=c", "example.org"),
    "http://example.org?q": ("http", "example.org", 80, "/?q", "example.org"),
    "http://example.org:443/": ("http", "example.org", 443, "/", "example.org:443"),
    "https://[2606:4700::1]/": ("https", "2606:4700::1", 443, "/", "[2606:4700::1]"),
    "https://[2606:4700::1]:80/": ("https", "2606:4700::1", 80, "/", "[2606:4700::1]:80"),
    "https://xn--bcher-kva.example/%C3%A4?x=@y": ("https", "xn--bcher-kva.example", 443, "/%C3%A4?x=@y", None),
}
REFUSED = (
    "",
    "http:",
    "http://",
    "http:///etc/passwd",
    "file:///etc/passwd",
    "ftp://example.org/",
    "gopher://example.org:80/_x",
    "//example.org/",
    "http:/example.org/",
    "http://me@example.org/",
    "http://me:secret@example.org/",
    "http://example.org@169.254.169.254/",
    "http://example.org\\@169.254.169.254/",
    "http://example.org:/",
    "http://example.org:0x50/",
    "http://example.org:123456/",
    "http://exa mple.org/",
    " http://example.org/",
    "http://example.org/\r\nX-Injected: yes",
    "http://example.org/a b",
    "http://example.org/\t",
    "http://example.org/\0",
    "http://example.org\r\nHost: 127.0.0.1/",
    "http://bücher.example/",
    "http://example.org/ä",
    "http://①②⑦.①/",
    "http://127。0。0。1/",
    "http://\u212aelvin.example/",  # a sign that is a k in lower case
    "http\u017f://example.org/",
    "http://example.org/\u212a",
    "http://[::1",
    "http://[127.0.0.1]/",
    "http://[fe80::1%25eth0]/",
    "http://::1/",
    "http://..example.org/",
    "http://-/",
)
NUMBERS = (
    *("2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.1", "127.0.1", "0x7f.0x0.0x0.0x1"),
    *("0", "0x", "1.2.3.4.5", "256.1.1.1", "127.0.0.01", "example.1", "example.0x7f"),
)


@pytest.mark.parametrize("url", READ)
def test_a_url_is_read(url: str) -> None:
    scheme, host, port, target, authority = READ[url]
    link = Link.parse(url)
    assert (link.scheme, link.host, link.port, link.target) == (scheme, host, port, target)
    assert authority is None or link.authority == authority


@pytest.mark.parametrize("url", REFUSED)
def test_what_is_no_such_url_is_refused(url: str) -> None:
    with pytest.raises(FetchFailed) as caught:
        Link.parse(url)
    assert caught.value.blame is Blame.LINK
    assert len(url) < 8 or url not in caught.value.reason


@pytest.mark.parametrize("host", NUMBERS)
def test_a_host_that_only_some_read_as_an_address_is_refused(host: str) -> None:
    for url in (f"http://{host}/", f"http://{host}./", f"http://{host}:80/"):
        with pytest.raises(FetchFailed, match="neither a name nor an address"):
            Link.parse(url)


@given(st.text(max_size=60))
def test_what_is_sent_has_one_line_and_no_space(rest: str) -> None:
    """Whatever stands in a URL: it is refused, or its target and its host are visible ASCII."""
    for url in (f"http://{rest}", f"http://example.org/{rest}", f"https://example.org{rest}/"):
        try:
            link = Link.parse(url)
        except FetchFailed:
            continue
        for sent in (link.target, link.host, link.authority):
            assert sent.isascii()
            assert sent.isprintable()
            assert not {" ", "\\"} & set(sent)
        assert "@" not in link.authority


def test_a_url_has_an_end() -> None:
    with pytest.raises(FetchFailed, match="characters"):
        Link.parse(f"http://example.org/{'a' * 9000}")


@pytest.mark.parametrize("port", [0, 22, 25, 79, 81, 444, 6379, 8000, 65535])
def test_other_ports_are_refused(port: int) -> None:
    with pytest.raises(FetchFailed, match="port"):
        Guard().check(Link.parse(f"http://example.org:{port}/"))


def test_hosts_are_those_of_the_setting() -> None:
    guard = Guard.of(Settings(fetch="hosts", fetch_hosts=("Example.org", "*.cdn.example", "8.8.8.8")))
    assert guard is not None
    for host in ("example.org", "EXAMPLE.org.", "a.cdn.example", "a.b.cdn.example", "8.8.8.8"):
        guard.check(Link.parse(f"https://{host}/"))
    for host in ("a.example.org", "cdn.example", "acdn.example", "example.org.evil.test", "8.8.4.4"):
        with pytest.raises(FetchFailed, match="none of those"):
            guard.check(Link.parse(f"https://{host}/"))


@pytest.mark.parametrize(
    "settings",
    [{"fetch": "hosts"}, {"fetch": "public", "fetch_hosts": ("a.example",)}, {"fetch_hosts": ("a.example",)}],
)
def test_hosts_belong_to_their_setting(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="FETCH_HOSTS"):
        Guard.of(Settings(**settings))


@pytest.mark.parametrize(
    "host", ["", "*", "*.", "a b", "http://a.example", "a.example/", "a.example:443", "*a.example"]
)
def test_what_is_no_host_is_refused_as_one(host: str) -> None:
    with pytest.raises(ValidationError):
        Settings(fetch="hosts", fetch_hosts=(host,))


def test_nothing_is_fetched_by_default() -> None:
    assert Guard.of(Settings()) is None
    assert Guard.of(Settings(fetch="public")) == Guard()
