"""The outgoing connection, against servers that misbehave. They have loopback addresses, which only tests allow."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network, ip_address
from pathlib import Path

import pytest

from omni_jobs.fetch.addresses import Address
from omni_jobs.fetch.failures import Blame, FetchFailed
from omni_jobs.fetch.guard import Guard
from omni_jobs.fetch.outgoing import FetchBounds, Outgoing
from tests.services.certificates import Authority

BODY = b"x" * 300_000
BOUNDS = FetchBounds(1 << 20, total_s=20)
LOOPBACK = (IPv4Network("127.0.0.0/8"),)

Write = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Names:
    """A resolver whose answers are given: each name's next one, then its last again."""

    answers: Mapping[str, Sequence[Sequence[str]]]
    asked: list[str] = field(default_factory=list)

    async def addresses(self, host: str, port: int) -> Sequence[Address]:
        answers = self.answers.get(host, ((),))
        nth = self.asked.count(host)
        self.asked.append(host)
        return [ip_address(each) for each in answers[min(nth, len(answers) - 1)]]

    def close(self) -> None:
        pass


@dataclass
class Host:
    """A server on loopback: its port, and the heads of the requests that it got."""

    port: int
    heads: list[bytes]
    closed: asyncio.Event  # once a client has closed its connection

    def outgoing(self, *answers: Sequence[str], networks: tuple[IPv4Network, ...] = LOOPBACK) -> Outgoing:
        names = Names({"media.test": answers or (("127.0.0.1",),)})
        return Outgoing(Guard(ports=frozenset({self.port}), networks=networks), names)

    @property
    def url(self) -> str:
        return f"http://media.test:{self.port}/a.png?b=c"


@asynccontextmanager
async def host(write: Write, trust: ssl.SSLContext | None = None, address: str = "127.0.0.1") -> AsyncIterator[Host]:
    heads: list[bytes] = []
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            await write(reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            closed.set()
            writer.close()

    server = await asyncio.start_server(answer, address, 0, ssl=trust)
    async with server:
        yield Host(server.sockets[0].getsockname()[1], heads, closed)


def sends(*pieces: bytes) -> Write:
    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines(pieces)

    return write


def answers(status: str, body: bytes = b"", *headers: str) -> Write:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""])
    return sends(head.encode(), body)


def endless(begin: bytes, piece: bytes, every_s: float = 0.0) -> Write:
    """Send the same for as long as the client takes it."""

    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(every_s)

    return write


def silent(begin: bytes) -> Write:
    """Send no more than ``begin`` until the client leaves."""

    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        await reader.read()

    return write


async def refused(outgoing: Outgoing, url: str, bounds: FetchBounds = BOUNDS) -> FetchFailed:
    with pytest.raises(FetchFailed) as caught:
        await outgoing.fetch(url, bounds)
    return caught.value


async def test_a_body_comes_whole_and_nothing_is_told_but_the_request() -> None:
    async with host(answers("200 OK", BODY, "Set-Cookie: a=b")) as there:
        outgoing = there.outgoing()
        assert await outgoing.fetch(there.url, BOUNDS) == BODY
        assert await outgoing.fetch(there.url, BOUNDS) == BODY  # without the cookie
    assert set(there.heads) == {
        f"GET /a.png?b=c HTTP/1.1\r\nHost: media.test:{there.port}\r\nUser-Agent: omni-jobs\r\nAccept: */*\r\n"
        "Accept-Encoding: identity\r\n\r\n".encode()
    }


async def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with host(answers("200 OK", b"a proxy")) as proxy, host(answers("200 OK", BODY)) as there:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await there.outgoing().fetch(there.url, BOUNDS) == BODY
    assert proxy.heads == []


async def test_the_address_that_was_checked_is_connected_to_and_looked_up_once() -> None:
    """A resolver that answers twice, first with an address that passes: the second answer is never asked for."""
    async with host(answers("200 OK", BODY)) as there:
        names = Names({"media.test": (("127.0.0.1",), ("127.0.0.2",))})
        outgoing = Outgoing(Guard(ports=frozenset({there.port}), networks=(IPv4Network("127.0.0.1/32"),)), names)
        assert await outgoing.fetch(there.url, BOUNDS) == BODY
        assert names.asked == ["media.test"]
        assert (await refused(outgoing, there.url)).blame is Blame.LINK
    assert len(there.heads) == 1


@pytest.mark.parametrize(
    "addresses",
    [(), ("127.0.0.1",), ("10.0.0.1",), ("93.184.216.34", "127.0.0.1"), ("::ffff:127.0.0.1",), ("::1",), ("::",)],
)
async def test_one_address_that_is_not_public_refuses_the_name(addresses: tuple[str, ...]) -> None:
    async with host(answers("200 OK", BODY)) as there:
        failed = await refused(there.outgoing(addresses, networks=()), there.url)
    assert (failed.blame, failed.reason) == (Blame.LINK, "the URL's host has no public address")
    assert there.heads == []


@pytest.mark.parametrize("written", ["127.0.0.1", "[::ffff:127.0.0.1]", "[::1]", "[64:ff9b::7f00:1]", "localhost"])
async def test_an_address_in_a_url_is_checked_as_well(written: str) -> None:
    async with host(answers("200 OK", BODY)) as there:
        outgoing = Outgoing(Guard(ports=frozenset({there.port})))  # with this machine's resolver
        failed = await refused(outgoing, f"http://{written}:{there.port}/")
        outgoing.close()
    assert failed.blame is Blame.LINK
    assert there.heads == []


async def test_the_next_address_is_tried_when_nobody_listens_at_the_first() -> None:
    async with host(answers("200 OK", BODY)) as there:
        outgoing = there.outgoing(("127.0.0.9", "127.0.0.1"))
        assert await outgoing.fetch(there.url, BOUNDS) == BODY


async def test_nobody_listens() -> None:
    async with host(answers("200 OK")) as there:
        outgoing = there.outgoing(("127.0.0.9",))
        assert (await refused(outgoing, there.url)).blame is Blame.HOST


STATUSES = {
    "301 Moved Permanently": Blame.ANSWER,
    "302 Found": Blame.ANSWER,
    "307 Temporary Redirect": Blame.ANSWER,
    "204 No Content": Blame.ANSWER,
    "206 Partial Content": Blame.ANSWER,
    "403 Forbidden": Blame.ANSWER,
    "404 Not Found": Blame.ANSWER,
    "429 Too Many Requests": Blame.HOST,
    "500 Internal Server Error": Blame.HOST,
    "503 Service Unavailable": Blame.HOST,
}


@pytest.mark.parametrize("status", STATUSES)
async def test_other_answers_than_200(status: str) -> None:
    async with host(answers("200 OK", b"metadata")) as other:
        to_other = f"Location: http://127.0.0.1:{other.port}/latest/meta-data/"
        async with host(answers(status, b"", to_other)) as there:
            failed = await refused(there.outgoing(), there.url)
    assert failed.blame is STATUSES[status]
    assert status[:3] in failed.reason
    assert (len(there.heads), other.heads) == (1, [])


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TOO_LARGE = {
    "10 GB by its head": sends(HEAD + b"Content-Length: 10000000000\r\n\r\n"),
    "a length of a hundred digits": sends(HEAD + b"Content-Length: " + b"9" * 19 + b"\r\n\r\n"),
    "an endless body": endless(HEAD + b"\r\n", BODY),
    "endless chunks": endless(CHUNKED, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"),
    "endless chunks of a byte": endless(CHUNKED, b"1\r\nx\r\n" * 10_000),
}


@pytest.mark.parametrize("write", TOO_LARGE.values(), ids=TOO_LARGE)
async def test_what_is_too_large_is_cut_off(write: Write) -> None:
    async with host(write) as there:
        failed = await refused(there.outgoing(), there.url, FetchBounds(256 << 10, total_s=60))
        assert failed.blame is Blame.SIZE
        await asyncio.wait_for(there.closed.wait(), 60)


BOMB = gzip.compress(bytes(20 << 20))
BROKEN = {
    "compressed": (answers("200 OK", BOMB, "Content-Encoding: gzip"), Blame.ANSWER, "compressed"),
    "compressed on the way": (sends(HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n"), Blame.HOST, "broke"),
    "a body that ends early": (sends(HEAD + b"Content-Length: 10\r\n\r\nshort"), Blame.HOST, "broke"),
    "chunks that end early": (sends(CHUNKED + b"5\r\nshort\r\n"), Blame.HOST, "broke"),
    "no HTTP": (sends(b"220 mail.test ESMTP\r\n"), Blame.HOST, "broke"),
    "nothing": (sends(), Blame.HOST, "broke"),
    "another protocol": (sends(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), Blame.HOST, "broke"),
    "two lengths": (sends(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"), Blame.HOST, "broke"),
    "a head of a megabyte": (sends(HEAD + b"X: " + b"x" * (1 << 20)), Blame.HOST, "broke"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_answers(name: str) -> None:
    write, blame, words = BROKEN[name]
    async with host(write) as there:
        failed = await refused(there.outgoing(), there.url)
    assert failed.blame is blame
    assert words in failed.reason


SLOW = {
    "no head": (silent(b""), "in time"),
    "a head of a byte at a time": (endless(HEAD + b"X: ", b"x", 0.05), "in time"),
    "endless heads": (endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.01), "in time"),
    "a flood of heads": (endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 1000), "in time"),
    "a body of a byte at a time": (endless(HEAD + b"\r\n", b"x", 0.05), "bytes a second"),
    "a body that stops": (silent(HEAD + b"\r\n" + BODY), "bytes a second"),
    "a body that is slow in all": (endless(HEAD + b"\r\n", b"x" * 1000, 0.01), "longer than 1 s"),
}


@pytest.mark.parametrize("name", SLOW)
async def test_what_is_too_slow_is_cut_off_and_holds_up_nobody(name: str) -> None:
    write, words = SLOW[name]
    async with host(write) as there:
        failed = await refused(there.outgoing(), there.url, FetchBounds(1 << 30, total_s=1, head_s=0.4, pace_s=0.4))
        assert failed.blame is Blame.HOST
        assert words in failed.reason
        await asyncio.wait_for(there.closed.wait(), 60)


async def test_who_holds_the_bytes_hears_of_each_before_it_is_kept() -> None:
    heard = 0

    class Full(Exception):
        pass

    def hold(more: int) -> None:
        nonlocal heard
        heard += more
        if heard > 100_000:
            raise Full

    async with host(endless(HEAD + b"\r\n", BODY)) as there:
        with pytest.raises(Full):
            await there.outgoing().fetch(there.url, BOUNDS, hold)
        await asyncio.wait_for(there.closed.wait(), 60)
    assert heard < 300_000


async def test_a_fetch_that_is_cancelled_closes_its_connection() -> None:
    async with host(endless(HEAD + b"\r\n", b"x" * 10_000, 0.01)) as there:
        begun = asyncio.Event()
        fetch = asyncio.ensure_future(there.outgoing().fetch(there.url, BOUNDS, lambda more: begun.set()))
        await begun.wait()
        fetch.cancel()
        await asyncio.wait_for(there.closed.wait(), 60)


# TLS.


async def test_the_name_is_what_the_certificate_is_checked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The connection goes to an address; the server hears the name (SNI), and its certificate must have it."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    heard: list[str | None] = []
    trust = authority.server("media.test")
    trust.sni_callback = lambda _socket, name, _context: heard.append(name)
    async with host(answers("200 OK", BODY), trust) as there:
        names = Names({"media.test": (("127.0.0.1",),), "other.test": (("127.0.0.1",),)})
        outgoing = Outgoing(Guard(ports=frozenset({there.port}), networks=LOOPBACK), names)
        assert await outgoing.fetch(f"https://media.test:{there.port}/", BOUNDS) == BODY
        failed = await refused(outgoing, f"https://other.test:{there.port}/")
        assert (failed.blame, heard) == (Blame.ANSWER, ["media.test", "other.test"])
        assert "certificate" in failed.reason
        assert (await refused(outgoing, f"https://127.0.0.1:{there.port}/")).blame is Blame.ANSWER
    assert len(there.heads) == 1


async def test_a_certificate_of_nobody_known_is_not_trusted(tmp_path: Path) -> None:
    async with host(answers("200 OK", BODY), Authority(tmp_path).server("media.test")) as there:
        failed = await refused(there.outgoing(), there.url.replace("http:", "https:"))
    assert "certificate" in failed.reason
    assert there.heads == []


async def test_a_server_that_begins_no_tls_is_given_up(tmp_path: Path) -> None:
    async with host(sends()) as there:
        url = there.url.replace("http:", "https:")
        failed = await refused(there.outgoing(), url, FetchBounds(1 << 20, total_s=5, head_s=0.4))
    assert failed.blame is Blame.HOST
