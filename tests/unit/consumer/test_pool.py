import inspect
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from celery.events.dispatcher import EventDispatcher
from celery.events.receiver import EventReceiver
from celery.worker import state
from celery.worker.heartbeat import Heart
from kombu import Connection
from kombu.asynchronous.hub import Hub
from kombu.transport import redis as transport

from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.settings import Settings
from workers.consumer import kombu_hooks
from workers.consumer.command_line import stage_of_queues


@pytest.fixture(scope="module")
def pipelines() -> Pipelines:
    return load_pipelines(Settings().stage_configs)


def test_a_queue_names_its_stage(pipelines: Pipelines) -> None:
    for queue in ("echo.second", "echo@1.second"):
        pipeline, stage = stage_of_queues([queue], pipelines)
        assert (pipeline.name, stage) == ("echo", "second")


@pytest.mark.parametrize(
    "queues", [[], ["echo.first", "echo.second"], ["echo"], ["echo.third"], ["echo@2.second"], ["celery"]]
)
def test_anything_but_one_stage_s_queue_is_refused(pipelines: Pipelines, queues: Sequence[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        stage_of_queues(queues, pipelines)
    assert caught.value.field == "-Q"


def test_q_relies_on_celery_selecting_a_queue_by_its_alias(tmp_path: Path) -> None:
    """``celery.app.amqp.Queues.select``: what is consumed then has the queue's own name."""
    echo = (Settings().resolved_stage_configs / "echo.yaml").read_text(encoding="utf-8")
    (tmp_path / "old.yaml").write_text(echo)
    (tmp_path / "new.yaml").write_text(echo.replace('version: "1"', 'version: "2"'))
    for asked, consumed in (("echo.first", "echo@2.first"), ("echo@2.first", "echo@2.first"), ("echo@1.first",) * 2):
        app = OmniCelery(Settings(), load_pipelines(tmp_path))
        app.amqp.queues.select([asked])
        assert list(app.amqp.queues.consume_from) == [consumed]


def test_a_worker_starts_light() -> None:
    """Until its slot is clear a worker imports no engine: a predecessor's stage runs wait for it."""
    code = """
import os, sys
os.environ["OMNI_JOBS_STAGE_CONFIGS"] = sys.argv[1]
import workers.app, workers.runners.echo.echo_processor, workers.runners.echo
sys.exit(", ".join(sorted({"torch", "transformers", "vllm", "safetensors"} & set(sys.modules))) or None)
"""
    configs = str(Settings().resolved_stage_configs)
    done = subprocess.run([sys.executable, "-c", code, configs], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# What workers.consumer.kombu_hooks relies on. When one of these fails after an upgrade, read the hook of that name.


def test_take_pops_relies_on_brpop_being_read_through_parse_response() -> None:
    source = inspect.getsource(transport.Channel._brpop_read)
    assert "self.client.parse_response(self.client.connection" in source
    assert "raise Empty()" in source


def test_gate_pops_relies_on_the_poller_asking_can_consume() -> None:
    assert "channel.qos.can_consume()" in inspect.getsource(transport.MultiChannelPoller.on_poll_start)
    assert "chan.handlers[type]()" in inspect.getsource(transport.MultiChannelPoller.on_readable)


def test_guard_control_relies_on_one_poller_reading_for_all_channels() -> None:
    assert "self.cycle.on_readable(fileno)" in inspect.getsource(transport.Transport.on_readable)
    connection = Connection("redis://127.0.0.1:1/0")  # connects to nothing
    kombu_hooks.guard_control(connection)
    cycle = connection.transport.cycle
    cycle._fd_to_chan = None  # whatever a malformed message breaks
    with pytest.raises(transport.Empty):
        cycle.on_readable(3)


def test_the_hub_takes_empty_for_nothing() -> None:
    assert "except Empty:" in inspect.getsource(Hub.create_loop)


def test_tell_true_counts_relies_on_heartbeats_being_sent_by_the_dispatcher() -> None:
    source = inspect.getsource(Heart._send)
    assert "self.eventer.send(event" in source
    assert "active=" in source
    assert "processed=" in source


def test_sends_task_events_relies_on_the_groups_of_a_dispatcher() -> None:
    assert "if groups and group not in groups" in inspect.getsource(EventDispatcher.send)


def test_publish_events_relies_on_what_celery_s_own_publishing_uses() -> None:
    source = inspect.getsource(EventDispatcher._publish)
    for part in (
        "exchange=exchange.name",
        "declare=[exchange]",
        "self.serializer",
        "self.headers",
        "self.delivery_mode",
    ):
        assert part in source
    assert "'%s.multi' % group" in inspect.getsource(EventDispatcher.flush)
    assert "isinstance(body, list)" in inspect.getsource(EventReceiver._receive)


@pytest.mark.parametrize("codes", [(1, 0), (0, 1)])
def test_ask_to_stop_sets_what_celery_s_sigterm_sets(codes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM asks for the exit code 0."""
    monkeypatch.setattr(state, "should_stop", None)
    monkeypatch.setattr(state, "should_terminate", None)
    assert not kombu_hooks.stop_asked()
    for code in codes:
        kombu_hooks.ask_to_stop(code)
        assert kombu_hooks.stop_asked()
    with pytest.raises(SystemExit) as caught:
        state.maybe_shutdown()
    assert caught.value.code == codes[0]  # the first reason stays


@pytest.mark.parametrize("flag", ["should_stop", "should_terminate"])
@pytest.mark.parametrize(("value", "asked"), [(None, False), (False, False), (True, True), (0, True), (1, True)])
def test_a_stop_is_asked_with_any_exit_code(
    flag: str, value: int | None, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "should_stop", None)
    monkeypatch.setattr(state, "should_terminate", None)
    monkeypatch.setattr(state, flag, value)
    assert kombu_hooks.stop_asked() is asked
