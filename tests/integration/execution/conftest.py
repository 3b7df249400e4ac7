"""A bench whose ledger serves, once on SQLite and once on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from omni_jobs.database.database import Database
from tests.integration.execution.ledger_bench import Bench


@pytest.fixture
async def bench(database: Database) -> AsyncIterator[Bench]:
    bench = Bench(database)
    await bench.start()
    yield bench
    await asyncio.to_thread(bench.ledger.close)
