"""The doorbell: one constant message a queue, which Celery's own reader takes for a call of the one task."""

import orjson
import pytest
from kombu import Connection
from kombu.transport.virtual import Message

from omni_jobs.broker.doorbell import TASK, doorbell


def test_a_queue_has_one_doorbell() -> None:
    assert doorbell("echo.first") == doorbell("echo.first") != doorbell("echo.second")
    assert len(doorbell("echo.first")) < 400, "a queue holds one for each slot"


@pytest.mark.parametrize("queue", ["echo.first", "模型.第一", 'a"b\\c.d'])
def test_celery_takes_it_for_a_call_without_arguments(queue: str) -> None:
    with Connection("memory://") as connection:
        message = Message(orjson.loads(doorbell(queue)), channel=connection.default_channel)
    assert message.headers == {"task": TASK, "id": queue}
    assert message.decode() == [[], {}, {}]
    assert message.delivery_info["routing_key"] == message.delivery_tag == queue
