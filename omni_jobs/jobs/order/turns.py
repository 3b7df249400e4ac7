"""Turns: the order in which queued stage runs are claimed. Pure policy; ``take_turns`` and ``quota`` apply it.

This is start-time fair queueing with self-clocking (Golestani 1994). A job gets a *turn*, a number, once, when it is
submitted or retried, or let in by its tenant's quota. All its stage runs have it, and workers claim the lowest turns
first, the oldest stage run among equal ones. One turn lies *behind* another if it is higher. A pipeline's *virtual
time* is the highest turn that has been claimed, or the lowest that waits at any of its stages if that is lower, because
a job that comes now is to compete where the work piles up. A tenant's next turn lies a *pace* behind its last one, and
behind the virtual time, because a tenant that was idle saves up nothing. The pace is the job's cost
(``omni_jobs.requests.cost``) by the tenant's weight: while several tenants have jobs waiting, each gets a share of the
work by its weight.

Within a tenant each priority has a line of its own:

    normal  a pace behind the tenant's last normal turn
    high    a pace behind the tenant's last high turn, so before the normal jobs that wait; it delays the tenant's
            next normal job by a pace, which pays for it
    low     LOW_PACES behind the tenant's last normal and low turns, so that normal jobs that come later go before it

What follows. W is the sum of the weights of all lines with jobs waiting: a tenant's normal and high line have its
weight w each, its low line has w / LOW_PACES.

- A job whose turn lies n paces behind the virtual time waits for at most n * W / w jobs of cost 1, for one more of
  each line, and for what runs already.
- A high job lies at most as many paces behind as it has place in its line: the first one 1. For a normal job, each
  high job that its tenant has submitted since its normal line was last empty counts as a place as well. A low job
  lies LOW_PACES times its place behind, and the places of the normal line. So under any load of others, and under any
  later load of its own tenant, each starts in time.
- A job that its tenant's quota holds has no turn. It gets one when it is let in (``omni_jobs.jobs.order.quota``), as if
  it had been submitted then, and all of this begins for it. So nothing is saved up by holding jobs, by cancelling
  those that run, or by a limit that is lifted.
- While a stage stands still, what waits there holds back the virtual time. Jobs of a tenant that comes then go before
  those of older tenants at the other stages, until it has had as much as they.
- Slots that a stage keeps for high jobs (``slots_for_high``) are beside all this. High jobs are claimed for them by
  their turns, but before others with lower ones; all others have the slots that are left.
- A tenant with normal and high jobs waiting gets up to twice its share, until its normal jobs of before have ended. Its
  later normal jobs lie as much further behind. So it is never further ahead of its share than by the normal jobs that
  it had waiting at one time. To take these back for each high job would cost a submit a search among them, and send the
  oldest to the end.
- Low jobs take a share of 1 / LOW_PACES beside the tenant's own; without other tenants they take all there is.
"""

from dataclasses import dataclass

from omni_jobs.priority import Priority

UNIT = 1 << 20
"""The pace of a job of cost 1 whose tenant has weight 1."""

LOW_PACES = 8
"""The number of paces between two low jobs."""

LAST_TURN = (1 << 63) - 1
"""The highest turn. Jobs that would have a higher one share it, and go by their age."""


@dataclass(slots=True)
class Lines:
    """The last turns that a tenant was given in a pipeline, by priority. ``next_turn`` changes them."""

    high: int = 0
    normal: int = 0
    low: int = 0


def next_turn(lines: Lines, virtual_time: int, priority: Priority, weight: float, cost: float = 1.0) -> int:
    """Return the turn of a tenant's next job, and note it in the tenant's ``lines``.

    ``virtual_time`` is that of the job's pipeline. ``weight`` is above 0 and finite; ``cost`` is 1 for a plain job.
    """
    pace = max(1, round(UNIT * cost / weight))
    after_normal = max(virtual_time, lines.normal)
    match priority:
        case Priority.HIGH:
            turn = lines.high = _at_most_last(max(virtual_time, lines.high) + pace)
            lines.normal = _at_most_last(after_normal + pace)
        case Priority.NORMAL:
            turn = lines.normal = _at_most_last(after_normal + pace)
        case Priority.LOW:
            turn = lines.low = _at_most_last(max(after_normal, lines.low) + LOW_PACES * pace)
    return turn


def _at_most_last(turn: int) -> int:
    return min(turn, LAST_TURN)
