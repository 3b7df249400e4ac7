"""Who must leave a server that is full, and who stays. Time stands still."""

from collections.abc import Callable, Iterable

import pytest

from omni_jobs.http.places import SLOW_BYTES_PER_S, SPARE_PLACES, Places, is_slow


class Client:
    """A connection, with what became of it."""

    def __init__(self, places: Places, holder: str = "a") -> None:
        self.places = places
        self.holder = holder
        self.slow = False
        self.tenant: str | None = None
        self.in_place_of: str | None = None
        self.has_left = False
        self.when_left: Callable[[], object] | None = None
        self.closed = False
        self.refused = False

    def is_slow(self) -> bool:
        return self.slow

    def close(self) -> None:
        self.closed = True

    def end_request(self) -> None:
        """Its client is told so, and may then be closed."""
        self.refused, self.slow = True, False
        self.places.rest(self)

    def asks(self) -> bool:
        return self.places.begin(self, is_for_health=False)


def busy(places: Places, number: int, holder: str = "a", *, slow: bool = False) -> list[Client]:
    """Let so many clients in, each with a request."""
    clients = [Client(places, holder) for _ in range(number)]
    for client in clients:
        assert places.enter(client)
        assert client.asks()
        client.slow = slow
    return clients


def refused(clients: Iterable[Client]) -> list[int]:
    return [number for number, client in enumerate(clients) if client.refused]


def newcomer(places: Places, holder: str = "new") -> Client:
    client = Client(places, holder)
    assert places.enter(client)
    return client


@pytest.mark.parametrize(
    ("waited_s", "moved", "slow"),
    [
        (0.9, 0, False),
        (1.1, 0, True),
        (10.0, 10 * SLOW_BYTES_PER_S - 1, True),
        (10.0, 10 * SLOW_BYTES_PER_S, False),
    ],
)
def test_what_is_slow(waited_s: float, moved: int, slow: bool) -> None:
    assert is_slow(waited_s, moved) is slow


def test_while_there_is_room_nobody_leaves() -> None:
    places = Places(100)
    clients = busy(places, 99, slow=True)
    assert newcomer(places).asks()
    assert refused(clients) == []


def test_the_newest_slow_ones_of_who_has_most_leave_a_full_server() -> None:
    places = Places(100)
    few, many, quick = busy(places, 20, "b", slow=True), busy(places, 40, "a", slow=True), busy(places, 40, "c")
    new = newcomer(places)
    assert new.asks()
    assert new.in_place_of == "a"
    assert refused(many) == [38, 39]
    assert refused(few + quick) == []
    for _ in range(60):
        newcomer(places).asks()
    assert len(refused(many)) == 30  # it keeps a tenth,
    assert len(refused(few)) == 10  # as others do
    assert refused(quick) == []


def test_a_holder_of_a_tenth_keeps_all() -> None:
    places = Places(100)
    groups = [busy(places, 10, holder, slow=True) for holder in "abcdefghij"]
    assert not newcomer(places).asks()
    assert [refused(group) for group in groups] == [[]] * 10


def test_who_is_without_a_request_leaves_first() -> None:
    now = 1000.0
    places = Places(100, clock=lambda: now)
    slow = busy(places, 99, slow=True)
    idle = newcomer(places)
    now += 1.1
    assert newcomer(places).asks()
    assert idle.closed
    assert refused(slow) == []


def test_who_has_just_come_has_a_second_for_its_request() -> None:
    now = 1000.0
    places = Places(100, clock=lambda: now)
    slow = busy(places, 98, slow=True)
    answered = busy(places, 1)[0]
    places.rest(answered)
    new = newcomer(places, "other")
    for _ in range(SPARE_PLACES):
        assert newcomer(places).asks()
    assert answered.closed
    assert len(refused(slow)) > 0
    assert not new.closed
    assert new.asks()


def test_who_has_just_come_leaves_where_nobody_is_slow() -> None:
    places = Places(100)
    clients = busy(places, 99)
    new = newcomer(places)
    assert newcomer(places).asks()
    assert new.closed
    assert refused(clients) == []
    assert not newcomer(places).asks()


def test_the_answered_and_the_refused_make_room_too() -> None:
    """A client that is told why its request was refused has a moment to read it, unless its place is needed."""
    places = Places(100)
    clients = busy(places, 100)
    places.rest(clients[7])
    assert newcomer(places).asks()
    assert clients[7].closed
    full = [newcomer(places) for _ in range(SPARE_PLACES)]
    assert not any(client.asks() for client in full)
    for client in full:
        places.rest(client)
    assert places.begin(newcomer(places), is_for_health=True)
    assert full[0].closed
    assert not full[1].closed


def test_health_is_served_on_a_full_server_and_costs_nobody_a_place() -> None:
    places = Places(100)
    slow = busy(places, 100, slow=True)
    probes = [newcomer(places) for _ in range(SPARE_PLACES)]
    assert all(places.begin(probe, is_for_health=True) for probe in probes)
    assert all(places.is_spare(probe) for probe in probes)
    assert not places.enter(Client(places))
    assert refused(slow) == []


def test_a_survey_that_finds_nobody_is_not_made_again_at_once() -> None:
    now = 1000.0
    places = Places(100, clock=lambda: now)
    clients = busy(places, 100)
    assert not newcomer(places).asks()
    for client in clients:
        client.slow = True
    assert not newcomer(places).asks()
    now += 0.2
    assert newcomer(places).asks()


def test_who_has_left_counts_no_longer() -> None:
    places = Places(3)
    clients = busy(places, 3, slow=True)
    for client in clients:
        places.leave(client)
    busy(places, 3)
    assert not newcomer(places).asks()
    assert refused(clients) == []
