"""``ToldMessage``: whatever attempts write, and wherever a client's connections break, it has the last one's text."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from omni_jobs.openai.responses.numbers import (
    ADDED,
    CLOSED,
    ENDED,
    MOST_CHARS,
    OF_ATTEMPT,
    PART_ADDED,
    TEXT,
    StreamPlace,
    number_of,
)
from omni_jobs.openai.responses.told_message import Closed, ToldMessage, known_text

LETTERS = st.text("ab", min_size=1, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), LETTERS),
        st.tuples(st.sampled_from(["look", "break", "lose", "forget"]), st.just("")),
    ),
    max_size=30,
)


class Told:
    """A client, and servers whose connections to it break. What it knows of where it is is the number of an event."""

    def __init__(self) -> None:
        self.last = -1
        self.messages: dict[int, str] = {}  # by the attempt by which each is named
        self.closed: list[int] = []
        self.pieces: dict[int, str] = {}  # what SQL has of the texts of attempts
        self.server = ToldMessage(StreamPlace.after(self.last))

    def take_up(self) -> None:
        self.server = ToldMessage(StreamPlace.after(self.last))

    def look(self, attempt: int, text: str, *, is_whole: bool = False) -> None:
        if attempt != self.server.attempt and (attempts := self.server.follow(attempt)):
            texts = {each: self.pieces.get(each, "") for each in attempts}
            self.server.compare_with(known_text(texts, self.server.chars))
        for told in self.server.tell(text[self.server.seen :], is_whole=is_whole):
            if isinstance(told, Closed):
                assert told.item in self.messages
                self._number(number_of(told.item, CLOSED))
                self.closed.append(told.item)
                continue
            assert told.item not in self.closed
            self.messages[told.item] = self.messages.get(told.item, "") + told.text
            assert told.chars == len(self.messages[told.item]), "a gap, or a double"
            self._number(number_of(told.item, TEXT + told.chars))

    def _number(self, number: int) -> None:
        assert number > self.last
        self.last = number


@settings(max_examples=1000, deadline=None)
@given(STEPS, LETTERS)
@example(
    [("write", "ab"), ("look", ""), ("write", "a"), ("lose", ""), ("write", "abb"), ("look", ""), ("lose", "")], "abab"
)
@example([("write", "aba"), ("look", ""), ("lose", ""), ("write", "ab"), ("look", ""), ("write", "b")], "a")
@example([("write", "aba"), ("look", ""), ("forget", ""), ("lose", ""), ("write", "aba"), ("look", "")], "b")
@example([("write", "b"), ("look", ""), ("lose", ""), ("write", "ba"), ("look", ""), ("break", "")], "a")
@example(
    [("write", "a"), ("look", ""), ("lose", ""), ("write", "b"), ("forget", ""), ("lose", ""), ("write", "b")], "b"
)
def test_the_last_message_is_the_last_attempt_s(steps: list[tuple[str, str]], end: str) -> None:
    told, attempt = Told(), 1
    written: dict[int, str] = {}
    for step, text in [*steps, ("write", end)]:
        if step == "write":
            written[attempt] = written.get(attempt, "") + text
            told.pieces[attempt] = told.pieces.get(attempt, "") + text
        elif step == "look" and attempt in written:
            told.look(attempt, written[attempt])
        elif step == "break":
            told.take_up()
        elif step == "lose":
            attempt += attempt in written
        elif step == "forget":  # all pieces go, and the attempt that runs writes its own again
            told.pieces = {attempt: written.get(attempt, "")}
    told.look(attempt, written[attempt], is_whole=True)
    *lost, last = told.messages
    assert told.messages[last] == written[attempt]
    assert told.closed == lost
    for item in lost:
        assert any(text.startswith(told.messages[item]) for text in written.values())
    if all(written[attempt].startswith(text) for text in written.values()) and ("forget", "") not in steps:
        assert not lost, "all have written the same"


def test_what_was_told_is_known_only_where_all_that_is_kept_of_it_agrees() -> None:
    assert known_text({1: "ab", 2: "abc"}, 3) == "abc"
    assert known_text({1: "abx", 2: "abc"}, 2) == "ab"
    assert known_text({1: "abx", 2: "abc"}, 3) is None
    assert known_text({1: "", 2: ""}, 1) is None
    assert known_text({1: "", 2: "a"}, 1) is None
    assert known_text({1: "", 2: ""}, 0) == ""


def test_the_place_after_a_number() -> None:
    places: dict[int, Any] = {
        -1: (1, None),
        0: (1, None),
        2: (1, None),
        ADDED: (1, 0),
        PART_ADDED: (1, 0),
        TEXT + 7: (1, 7),
        CLOSED: (1, None),
        ENDED: (1, None),
        OF_ATTEMPT + ADDED: (2, 0),
        3 * OF_ATTEMPT + TEXT + 1: (4, 1),
    }
    assert {number: tuple(StreamPlace.after(number)) for number in places} == places
    assert number_of(4, TEXT + 1) == 3 * OF_ATTEMPT + TEXT + 1
    assert number_of(0, ENDED) == number_of(1, ENDED)


def test_deltas_leave_room_for_what_follows_them() -> None:
    told = ToldMessage(StreamPlace(1, MOST_CHARS - 2))
    told.follow(1)
    assert [*told.tell("abcd", is_whole=False)] == [(1, MOST_CHARS, "ab")]
    assert [*told.tell("efgh", is_whole=True)] == []


def test_a_message_that_the_client_made_up_is_none() -> None:
    told = ToldMessage(StreamPlace(7, 20))
    assert not told.follow(2)
    assert [*told.tell("abc", is_whole=True)] == [(2, 3, "abc")]
