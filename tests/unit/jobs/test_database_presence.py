"""Since when the database has been there, by its own clock."""

from omni_jobs.jobs import DatabasePresence


def test_it_begins_with_the_first_answer_and_goes_on_without_a_gap() -> None:
    presence = DatabasePresence(5)
    assert [presence.note(at) for at in (100, 101, 106, 111)] == [100] * 4


def test_a_gap_begins_it_anew() -> None:
    presence = DatabasePresence(5)
    assert [presence.note(at) for at in (100, 105.5, 106)] == [100, 105.5, 105.5]


def test_a_clock_that_steps_back_begins_it_anew() -> None:
    """Leases that were given before lie in the future then; they end late, and nobody is lost early."""
    presence = DatabasePresence(5)
    assert [presence.note(at) for at in (100, 40, 41)] == [100, 40, 40]
