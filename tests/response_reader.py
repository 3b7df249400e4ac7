"""``Reader``: what a client has of a response's events, over however many connections."""

from collections.abc import Iterator
from random import Random
from typing import Any

from omni_jobs.openai.responses.numbers import OF_ATTEMPT, TEXT
from tests.integration.openai.stock import Stock

ENDS = ("response.completed", "response.incomplete", "response.failed")


class Reader:
    """A client that keeps what the events of one response say, and checks that they go on where they were."""

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        self.last = -1
        self.events: list[Any] = []
        self.texts: dict[str, str] = {}  # by item
        self.statuses: dict[str, str] = {}  # of items that are done
        self.response: Any = None  # as the last event has it

    def take(self, event: Any) -> None:
        assert event.sequence_number > self.last, "an event that it has, or out of turn"
        self.last = event.sequence_number
        self.events.append(event)
        kind = event.type.removeprefix("response.")
        if kind == "output_item.added":
            assert event.item.id not in self.texts
            assert len(self.statuses) == len(self.texts), "a message begins before the one before is closed"
            self.texts[event.item.id] = ""
        elif kind == "output_text.delta":
            assert event.item_id not in self.statuses
            self.texts[event.item_id] += event.delta
            assert event.sequence_number % OF_ATTEMPT == TEXT + len(self.texts[event.item_id]), "a gap, or a double"
        elif kind == "output_text.done":
            assert self.texts[event.item_id] == event.text
        elif kind == "output_item.done":
            self.statuses[event.item.id] = event.item.status
        elif event.type in ENDS:
            self.response = event.response

    def read(self, stocks: list[Stock], cuts: Random) -> "Reader":
        """Read to the end. Each connection gives a few events, at the servers in turn."""
        turn = 0
        while self.response is None:
            its = stocks[turn % len(stocks)].client.responses
            after = {} if self.last < 0 else {"starting_after": self.last}
            left = cuts.randint(1, 6)
            with its.retrieve(self.response_id, stream=True, **after) as events:
                for event in events:
                    self.take(event)
                    left -= 1
                    if not left or self.response is not None:
                        break
            turn += 1
            assert turn < 20_000, "it never ends"
        return self

    def until(self, events: Iterator[Any], text: str) -> list[str]:
        """Read until the last message says this, and return the types of the events."""
        kinds = []
        while not self.texts or list(self.texts.values())[-1] != text:
            event = next(events)
            self.take(event)
            kinds.append(event.type.removeprefix("response."))
        return kinds
