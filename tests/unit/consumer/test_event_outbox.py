"""Celery's events of stage runs wait in an outbox that is bounded, and that no broker holds up for long."""

import pytest
from celery import Celery
from celery.events.dispatcher import EventDispatcher

from workers.consumer import event_outbox
from workers.consumer.event_outbox import EventOutbox


@pytest.fixture
def dispatcher() -> EventDispatcher:
    """A dispatcher of Celery's, whose broker is away."""
    app = Celery(broker="redis://127.0.0.1:1/0", set_as_current=False)
    return EventDispatcher(app.connection_for_write(), app=app, hostname="first@test", groups=["worker"])


def test_events_are_wanted_once_somebody_asks(dispatcher: EventDispatcher) -> None:
    outbox = EventOutbox()
    assert not outbox.is_wanted
    outbox.attach(dispatcher)
    assert not outbox.is_wanted
    dispatcher.groups.add("task")
    assert outbox.is_wanted
    dispatcher.disable()
    assert not outbox.is_wanted


def test_the_oldest_events_are_dropped_beyond_the_bound(
    dispatcher: EventDispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = EventOutbox()
    dispatcher.groups.clear()  # as by -E: events of all kinds
    outbox.attach(dispatcher)
    for number in range(event_outbox._AT_MOST + 3):
        outbox.send("task-received", {"number": number})
    assert len(outbox._waiting) == event_outbox._AT_MOST
    assert outbox._waiting[0] == ("task-received", {"number": 3})
    outbox.flush()
    assert "3 events of stage runs were dropped: they came faster" in caplog.text


def test_a_broker_that_is_away_costs_one_try_and_nothing_is_kept_for_it(
    dispatcher: EventDispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = EventOutbox()
    dispatcher.groups.add("task")
    outbox.attach(dispatcher)
    for _ in range(3 * event_outbox._GROUP):
        outbox.send("task-received", {})
    outbox.flush()
    assert caplog.text.count("the broker took none") == 1
    assert not outbox._waiting
    assert not dispatcher._outbound_buffer
    outbox.send("task-started", {})
    outbox.flush()  # too soon after the last try
    assert len(outbox._waiting) == 1
