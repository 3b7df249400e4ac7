"""Actions on many jobs, step by step: each job is changed once and counted once, whoever dies and whoever rivals."""

import random
from collections import Counter

import pytest
from sqlalchemy import select

from omni_jobs.database.database import Database
from omni_jobs.database.seen_tables import ActionRow
from omni_jobs.errors import Conflict, Fenced, NotFound, OmniJobsError
from omni_jobs.jobs import (
    Action,
    ActionStep,
    ActionTurn,
    ActionVerb,
    JobFilter,
    Jobs,
    NewAction,
    after_step,
    new_action_id,
)
from omni_jobs.states import JobState
from tests.integration.job_steps import claim, complete_each, new_job, pass_time, register_each, submit_one

GONE_S = 6.0
HALF_GONE_S = 4.0
WAITING = frozenset([JobState.QUEUED, JobState.IN_PROGRESS])


def begun(
    jobs: Jobs, verb: ActionVerb = "cancel", tenant: str | None = None, states: frozenset[JobState] | None = None
) -> str:
    states = states or (WAITING if verb == "cancel" else frozenset([JobState.CANCELLED]))
    new = NewAction(new_action_id(), verb, JobFilter(states=states, tenant=tenant), "x=<b>", "key-1", tenant)
    jobs.begin_action(new)
    return new.id


def taken(jobs: Jobs) -> ActionTurn:
    turn = jobs.take_action()
    assert turn is not None
    return turn


def step(jobs: Jobs, turn: ActionTurn, size: int = 3) -> ActionTurn:
    """One step as a server takes it."""
    found = jobs.matching(turn.next_jobs, size, turn.cursor)
    if turn.state == "counting":
        return jobs.note_step(turn, ActionStep.to_end_of(found)._replace(counted=len(found.ids)))
    if turn.verb != "retry":
        return jobs.change_group(turn, found)
    for job_id in found.ids:
        noted = ActionStep(job_id, changed=1)
        jobs.retry(job_id, by=turn.actor, as_step=(turn, noted))
        turn = after_step(turn, noted)
    return jobs.note_step(turn, ActionStep.to_end_of(found))


def performed(jobs: Jobs) -> Action:
    turn = taken(jobs)
    while not turn.state.is_final:
        turn = step(jobs, turn)
    return jobs.action(turn.id)


def acted_on(jobs: Jobs, verb: str) -> Counter[str]:
    """How often the audit has each job."""
    acts = [act for act in jobs.acts(at_most=1000) if act.action == verb]
    return Counter(job_id for act in acts for job_id in act.details.get("job_ids", [act.target]))


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete"])
def test_each_job_is_changed_and_counted_once(jobs_or_forgetful: Jobs, verb: ActionVerb) -> None:
    jobs = jobs_or_forgetful
    ids = [submit_one(jobs, new_job()).job_id for _ in range(8)]
    if verb != "cancel":
        jobs.cancel_all(ids)
    begun(jobs, verb)
    done = performed(jobs)
    assert (done.state, done.total, done.changed, done.skipped) == ("done", 8, 8, [])
    assert acted_on(jobs, verb) == Counter(ids)
    assert jobs.take_action() is None


def test_an_action_that_was_taken_is_nobody_elses_until_its_lease_ends(jobs: Jobs, database: Database) -> None:
    for _ in range(8):
        submit_one(jobs, new_job())
    begun(jobs)
    first = taken(jobs)
    assert jobs.take_action() is None
    pass_time(database, GONE_S)
    second = step(jobs, taken(jobs))
    with pytest.raises(Fenced):
        step(jobs, first)
    jobs.let_go_action(first)  # which is not its own any more
    assert jobs.take_action() is None
    jobs.let_go_action(second)
    assert taken(jobs).cursor == second.cursor


def test_a_form_that_is_sent_twice_begins_one_action(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    new = NewAction(new_action_id(), "cancel", JobFilter(states=WAITING, tenant="one"), "q", "key-1", "one")
    jobs.begin_action(new)
    jobs.begin_action(new)
    assert [action.id for action in jobs.actions()] == [new.id]
    assert [act.action for act in jobs.acts()] == ["begin_action"]
    with pytest.raises(NotFound):
        jobs.begin_action(NewAction(new.id, "cancel", JobFilter(tenant="two"), "q", "key-2", "two"))
    for tenant, sees in (("one", [new.id]), ("two", []), (None, [new.id])):
        assert [action.id for action in jobs.actions(tenant)] == sees
    with pytest.raises(NotFound):
        jobs.stop_action(new.id, "two", by="key-2")
    assert jobs.action(new.id, "one").state == "counting"


def test_a_stop_ends_it_before_its_next_step(jobs: Jobs) -> None:
    ids = [submit_one(jobs, new_job()).job_id for _ in range(8)]
    action = begun(jobs)
    turn = taken(jobs)
    while turn.state == "counting" or turn.cursor is None:
        turn = step(jobs, turn)
    jobs.stop_action(action, by="key-2")
    jobs.stop_action(action, by="key-3")
    with pytest.raises(Fenced):
        step(jobs, turn)
    assert (jobs.action(action).state, jobs.action(action).changed) == ("stopped", 3)
    assert acted_on(jobs, "cancel") == Counter(sorted(ids)[-3:])
    assert [act.actor for act in jobs.acts() if act.action == "stop_action"] == ["key-2"]
    assert jobs.action(action).stopped_by == "key-2"
    assert jobs.take_action() is None


def test_a_renewal_holds_an_action_for_longer_for_its_holder_alone(jobs: Jobs, database: Database) -> None:
    submit_one(jobs, new_job())
    action = begun(jobs)
    first = taken(jobs)
    for _ in range(3):
        pass_time(database, HALF_GONE_S)
        jobs.renew_action(first)
    assert jobs.take_action() is None
    if database.dialect == "postgresql":  # SQLite has one writer at a time
        with database.begin() as tx:  # as a step does
            tx.execute(select(ActionRow.id).where(ActionRow.id == action).with_for_update())
            jobs.renew_action(first)  # which waits for nobody
    pass_time(database, GONE_S)
    second = taken(jobs)
    pass_time(database, GONE_S)
    jobs.renew_action(first)
    assert taken(jobs).id == second.id
    jobs.stop_action(action, by="key-2")
    jobs.renew_action(second)
    assert jobs.action(action).state == "stopped"


@pytest.mark.parametrize("verb", ["cancel", "delete", "retry"])
def test_a_job_that_left_the_wanted_states_between_look_and_group_is_left(jobs: Jobs, verb: ActionVerb) -> None:
    """Cancel the queued ones: one begins. Delete or retry the cancelled ones: one is retried, and completes."""
    ids = [submit_one(jobs, new_job()).job_id for _ in range(3)]
    register_each(jobs)
    if verb == "cancel":
        begun(jobs, verb, states=frozenset([JobState.QUEUED]))
    else:
        jobs.cancel_all(ids)
        begun(jobs, verb)
    turn = step(jobs, taken(jobs))
    found = jobs.matching(turn.wanted, 9, turn.cursor)
    if verb == "cancel":
        changes = claim(jobs, "first", 1)[0].job_id
    else:
        jobs.retry(changes := ids[0])
        complete_each(jobs)
    before = jobs.get(changes).status
    if verb == "retry":
        with pytest.raises(Conflict, match="completed now"):
            jobs.retry(changes, states=turn.wanted.states, by="key-1", as_step=(turn, ActionStep(changes, changed=1)))
    else:
        assert jobs.change_group(turn, found).state == "done"
        shown = jobs.action(turn.id)
        assert (shown.changed, [(each.count, each.job_id) for each in shown.skipped]) == (2, [(1, changes)])
    assert (jobs.get(changes).status, changes in found.ids) == (before, True)
    assert changes not in acted_on(jobs, verb)


def test_tenants_whose_jobs_wait_take_turns(jobs_or_forgetful: Jobs) -> None:
    """Each walk goes on where it found no room, and the jobs of a tenant that waits are passed by until then."""
    jobs = jobs_or_forgetful
    ids = {(tenant, number): submit_one(jobs, new_job(tenant=tenant)).job_id for number in range(2) for tenant in "abc"}
    jobs.cancel_all(list(ids.values()))
    begun(jobs, "retry")
    turn = step(jobs, taken(jobs), 9)

    def retried(turn: ActionTurn) -> ActionTurn:
        found = jobs.matching(turn.next_jobs, 1, turn.cursor)
        noted = ActionStep(found.ids[0], changed=1)
        jobs.retry(found.ids[0], by="key-1", as_step=(turn, noted))
        return after_step(turn, noted)

    def waits(turn: ActionTurn) -> ActionTurn:
        [found] = jobs.matching(turn.next_jobs, 1, turn.cursor).ids
        return jobs.note_step(turn, ActionStep(turn.cursor, waits=jobs.get(found).tenant))

    turn = retried(waits(turn))  # c waits, b goes on
    assert acted_on(jobs, "retry") == Counter([ids["b", 1]])
    turn = retried(waits(retried(turn)))  # b waits after one, or a
    turn = jobs.note_step(turn, ActionStep(turn.cursor, is_last=True))
    shown = jobs.action(turn.id)
    assert (turn.wanted.tenant, shown.waiting, shown.changed) == ("c", ["b"], 3)
    turn = waits(turn)
    assert (turn.wanted.tenant, jobs.action(turn.id).waiting) == ("b", ["c"])
    turn = retried(turn)
    turn = jobs.note_step(turn, ActionStep(turn.cursor, is_last=True))
    turn = retried(retried(turn))
    turn = jobs.note_step(turn, ActionStep(turn.cursor, is_last=True))
    assert (turn.state, jobs.action(turn.id).state) == ("done", "done")
    assert acted_on(jobs, "retry") == Counter(ids.values())


def test_what_it_waits_for_is_told_until_it_goes_on(jobs: Jobs, database: Database) -> None:
    submit_one(jobs, new_job())
    action = begun(jobs)
    jobs.let_go_action(taken(jobs), OmniJobsError("no room"), 5.0)
    told = jobs.action(action)
    assert told.trouble is not None
    assert (told.trouble.message, told.state, jobs.take_action()) == ("no room", "counting", None)
    pass_time(database, GONE_S)
    step(jobs, taken(jobs))
    assert jobs.action(action).trouble is None
    pass_time(database, GONE_S)
    jobs.fail_action(taken(jobs), OmniJobsError("no key"))
    assert (jobs.action(action).state, jobs.take_action()) == ("failed", None)
    stopped = begun(jobs)
    jobs.let_go_action(taken(jobs), OmniJobsError("no room"))
    jobs.stop_action(stopped, by="key-1")
    assert jobs.action(stopped).trouble is None


def test_who_sees_the_same_jobs_begins_so_many_at_a_time(jobs: Jobs) -> None:
    for _ in range(20):
        begun(jobs, tenant="one")
    with pytest.raises(Conflict, match="20 actions"):
        begun(jobs, tenant="one")
    begun(jobs, tenant="two")
    assert jobs.prune_actions(0.0) == 0, "none has ended"
    performed(jobs)
    assert (jobs.prune_actions(1000.0), jobs.prune_actions(-1.0), len(jobs.actions())) == (0, 1, 20)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_each_job_is_changed_and_counted_once(
    jobs_or_forgetful: Jobs, database: Database, seed: int
) -> None:
    """Servers that take actions, die, come back late and lose answers, while others change jobs and stop actions."""
    jobs, rng = jobs_or_forgetful, random.Random(seed)
    verb: ActionVerb = rng.choice(["cancel", "retry", "delete", "advance"])
    ids = [submit_one(jobs, new_job()).job_id for _ in range(12)]
    others: set[str] = set()
    if verb in ("retry", "delete"):
        jobs.cancel_all(ids)
    states = {"cancel": WAITING, "advance": frozenset([JobState.QUEUED])}
    wanted = JobFilter(states=states.get(verb, frozenset([JobState.CANCELLED])))
    action = NewAction(new_action_id(), verb, wanted, "q", "key-1", None)
    jobs.begin_action(action)
    turns: list[ActionTurn] = []
    stops_at = rng.randrange(5, 80) if rng.random() < 0.25 else None
    for moment in range(400):
        if jobs.action(action.id).state.is_final:
            break
        if moment == stops_at:
            jobs.stop_action(action.id, by="key-2")
        match rng.choice(["take", "step", "step", "step", "die", "late", "renew", "other"]):
            case "take" if (turn := jobs.take_action()) is not None:
                turns.append(turn)
            case "die":
                pass_time(database, GONE_S)
            case "renew" if turns:  # also somebody who has lost it
                jobs.renew_action(rng.choice(turns))
            case "other" if verb == "cancel":  # somebody else cancels one
                others.add(job_id := rng.choice(ids))
                jobs.cancel_all([job_id], by="other")
            case "step" | "late" if turns:
                which = rng.randrange(len(turns)) if rng.random() < 0.3 else -1
                try:
                    after = step(jobs, turns[which], rng.randint(1, 4))
                    if rng.random() < 0.9:
                        turns[which] = after
                    else:  # it never heard of it, and gives the action up
                        turns.pop(which)
                except (Fenced, Conflict):
                    turns.pop(which)
    shown, times = jobs.action(action.id), acted_on(jobs, verb)
    assert max(times.values(), default=0) <= 1
    assert shown.changed == sum(times[job_id] for job_id in ids) - sum(
        len(act.details["job_ids"]) for act in jobs.acts(at_most=1000) if act.actor == "other"
    )
    if stops_at is None:
        assert (shown.state, set(times)) == ("done", set(ids))
        assert shown.done_with <= len(ids)
        assert others or shown.done_with == shown.total == len(ids)
