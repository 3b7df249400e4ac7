"""What ``test_internet`` runs in a network of its own: servers on the web's ports, and fetches from them."""

import asyncio
import ssl
import sys
from pathlib import Path

from omni_jobs.fetch.failures import FetchFailed
from omni_jobs.fetch.guard import Guard
from omni_jobs.fetch.outgoing import FetchBounds, Outgoing
from omni_jobs.settings import Settings

URLS = (
    "http://media.example/a",
    "https://media.example/a",
    "http://93.184.216.34/a",
    "http://six.example/a",
    "http://[2606:4700::1234]/a",
    "https://six.example/a",
    "http://mixed.example/a",
    "http://loopback.example/a",
    "http://127.0.0.1/a",
)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody")
    await writer.drain()
    writer.close()


async def main(directory: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem", directory / "server.key")
    guard = Guard.of(Settings(fetch="public"))
    if guard is None:
        raise SystemExit("nothing is fetched")
    outgoing = Outgoing(guard)
    plain = await asyncio.start_server(answer, ["0.0.0.0", "::"], 80)
    secure = await asyncio.start_server(answer, ["0.0.0.0", "::"], 443, ssl=context)
    async with plain, secure:
        for url in URLS:
            try:
                came = (await outgoing.fetch(url, FetchBounds(1 << 20, total_s=20))).decode()
            except FetchFailed as failed:
                came = f"{failed.blame.value} ({failed.reason})"
            print(f"{url}: {came}", flush=True)
    outgoing.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
