"""A server whose pipeline ``echo_media`` is run by real workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.database.database import Database
from tests.integration.api_server import ApiServer, serve
from tests.integration.echo_stack import EchoStack
from tests.integration.openai.stock import Stock, stock_client

CONFIG = Path(__file__).parents[3] / "stage_configs" / "echo_media.yaml"


@pytest.fixture(scope="session")
def echo_stack(tmp_path_factory: pytest.TempPathFactory, valkey_server: str) -> Iterator[EchoStack]:
    directory = tmp_path_factory.mktemp("echo_media")
    url = f"sqlite:///{directory / 'jobs.sqlite'}"
    database = Database(url)
    database.migrate()
    database.close()
    options = {"OMNI_JOBS_LEASE_S": "60", "OMNI_JOBS_STORAGE_SYNC": "false"}
    config = CONFIG.read_text(encoding="utf-8")
    stack = EchoStack(directory, url, valkey_server, options, pipeline="echo_media", config=config)
    try:
        stack.start("answer", "sound", "picture", "video")
        yield stack
    finally:
        stack.close()


@pytest.fixture(scope="session")
def echo_media(echo_stack: EchoStack) -> Iterator[ApiServer]:
    with serve(echo_stack.settings) as api:
        yield api


@pytest.fixture
def stock(echo_media: ApiServer) -> Iterator[Stock]:
    with stock_client(f"http://{echo_media.host}:{echo_media.port}") as client:
        yield client
