"""What ``httpx_hooks`` relies on: where httpx2 keeps the backend that opens its connections."""

import asyncio

import httpx2

from omni_jobs.fetch.polite_backend import PoliteBackend
from workers.runners.remote.httpx_hooks import read_politely


async def test_every_pool_of_a_client_opens_polite_connections() -> None:
    async with httpx2.AsyncClient(
        mounts={"all://proxied.test": httpx2.AsyncHTTPTransport(proxy="http://127.0.0.1:9")}, trust_env=False
    ) as client:
        read_politely(client)
        transports = [client._transport, *client._mounts.values()]
        assert len(transports) == 2
        for transport in transports:
            assert isinstance(transport, httpx2.AsyncHTTPTransport)
            assert isinstance(transport._pool._network_backend, PoliteBackend)


async def test_an_answer_comes_through_a_polite_connection() -> None:
    body = b"x" * 300_000

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, httpx2.AsyncClient(trust_env=False) as client:
        read_politely(client)
        response = await client.get(f"http://127.0.0.1:{port}/")
        connection = response.extensions["network_stream"]
        assert response.content == body
        assert connection is not None
