"""300 clients with unknown keys at once, on both databases: right keys that the server has not seen are served."""

import asyncio
import secrets
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.tenants import lookup_cache
from omni_jobs.tenants.caller import Caller
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
STRANGERS = 300
WAIT_S = 60.0


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"auth": "keys", "broker_key_prefix": f"{settings.data_dir.name}-"})


class Counted:
    """The look-ups of keys, as the server does them: how many there were, of how many keys, and how many at once."""

    def __init__(self, api: ApiServer) -> None:
        keys = api.services.callers._keys
        self._look_up = keys._look_up
        keys._look_up = self._counted
        self._lock = threading.Lock()
        self._going = 0
        self.calls = self.names = self.largest = self.at_once = 0

    def _counted(self, names: Sequence[str]) -> Mapping[str, tuple[Caller, float]]:
        with self._lock:
            self._going += 1
            self.calls += 1
            self.names += len(names)
            self.largest = max(self.largest, len(names))
            self.at_once = max(self.at_once, self._going)
        try:
            return self._look_up(names)
        finally:
            with self._lock:
                self._going -= 1


async def stranger(api: ApiServer, ended: threading.Event, told: Counter[int]) -> None:
    """Ask with one unknown key after another."""
    reader, writer = await asyncio.open_connection(api.host, api.port)
    while not ended.is_set():
        key = f"omni_{secrets.token_hex(21)}a"
        writer.write(f"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-l"))
        await reader.readexactly(length)
        told[int(head.split()[1])] += 1
    writer.close()


def test_strangers_keep_out_nobody(settings: Settings, database: Database) -> None:
    Tenants(database).create("acme")
    right = [ApiKeys(database).create("acme", ["admin"]).key for _ in range(10)]
    told: Counter[int] = Counter()
    ended = threading.Event()

    def come(api: ApiServer) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(stranger(api, ended, told) for _ in range(STRANGERS)))

        asyncio.run(all_of_them())

    with serve(settings) as api:
        counted = Counted(api)
        thread = threading.Thread(target=come, args=(api,))
        thread.start()
        try:
            while sum(told.values()) < STRANGERS and thread.is_alive():
                assert api.http.get("/healthz").status_code == 200
            for key in right:
                answer = api.http.post("/v1/jobs", json=ECHO, headers={"Authorization": f"Bearer {key}"})
                assert answer.status_code == 202, answer.text
                assert api.http.get("/healthz").status_code == 200
                ready = api.http.get("/readyz", headers={"Authorization": f"Bearer {key}"})
                assert (ready.status_code, "database" in ready.json()) == (200, True)
        finally:
            ended.set()
            thread.join(WAIT_S)
    assert not thread.is_alive()
    assert set(told) == {401}, told
    assert counted.names >= sum(told.values())
    assert counted.calls < counted.names / 4, "strangers are looked up together"
    assert counted.largest <= lookup_cache._AT_ONCE
    assert counted.at_once <= 3
