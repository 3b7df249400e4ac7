"""``Jobs``: the only code that changes a job's, stage run's or worker's state. Its methods in the order of use:

submit_all → claim → report_progress, record_snapshots → report;  cancel, retry, fork, advance, delete
cancel_all, advance_all, delete_all
begin_action → take_action → note_step, change_group, renew_action → let_go_action, fail_action;  stop_action
register_worker → renew → retire_worker, forgive (by a fenced worker);  rescue, prune, sample (by the rescuer's process)

Each verb stands with its SQL in a file of its own, which explains it. ``Jobs`` gives the transaction, the first
argument there. In the SQL ``{name}`` is a text of the same file or of ``database/words.sql``
(``omni_jobs.database.statement``).
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from omni_jobs.database.audit import Act
from omni_jobs.database.audit import act as new_act
from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, OmniJobsError
from omni_jobs.identity import StageId
from omni_jobs.jobs.crew import action_turns, actions, lease, rescue, sample
from omni_jobs.jobs.crew.action_turns import ActionStep, ActionTurn
from omni_jobs.jobs.crew.actions import NewAction
from omni_jobs.jobs.crew.drain import WorkerDrain, set_drained
from omni_jobs.jobs.crew.rescue import DatabasePresence
from omni_jobs.jobs.keep import audit, usage
from omni_jobs.jobs.keep.delete_holds import deletes_are_held, end_hold, hold_deletes
from omni_jobs.jobs.keep.garbage import forget_garbage, garbage, orphans, still_shared
from omni_jobs.jobs.keep.prune import delete_job, delete_jobs, hasten, prune
from omni_jobs.jobs.keep.stage_samples import StageStanding, VersionStage
from omni_jobs.jobs.keep.stored_bytes import of_tenant
from omni_jobs.jobs.life import claim, fork_job, report, retry_job, submit
from omni_jobs.jobs.life.abandon import abandon, abandoned, ask_for
from omni_jobs.jobs.life.first_tries import FirstTry, begin_tries, end_tries, keep_try, lose_tries, take_try
from omni_jobs.jobs.life.noted_changes import run_noting
from omni_jobs.jobs.life.progress import report_progress
from omni_jobs.jobs.life.report import withdraw
from omni_jobs.jobs.life.snapshot import record_snapshots
from omni_jobs.jobs.life.submit import known_keys, known_submits
from omni_jobs.jobs.observers.jobs_observer import JobsObserver
from omni_jobs.jobs.order import advance
from omni_jobs.jobs.order import paused_stages as paused
from omni_jobs.jobs.order import pipeline_versions as versions
from omni_jobs.jobs.order.down_engines import down_engines
from omni_jobs.jobs.order.pipeline_versions import KnownVersion
from omni_jobs.jobs.read import calibrate, job_view, watched
from omni_jobs.jobs.read.audit import acts
from omni_jobs.jobs.read.calibrate import calibrations
from omni_jobs.jobs.read.counts import counts, jobs_in_progress, media_bytes, queued_jobs
from omni_jobs.jobs.read.error_kinds import error_counts, error_kinds
from omni_jobs.jobs.read.glances import glances
from omni_jobs.jobs.read.job_list import job_list
from omni_jobs.jobs.read.matching import matching
from omni_jobs.jobs.read.payloads import payloads
from omni_jobs.jobs.read.stage_crew import stage_crew
from omni_jobs.jobs.read.stage_samples import sampled_s_ago, stage_samples
from omni_jobs.jobs.read.tally import tally
from omni_jobs.jobs.read.videos import video_job, video_jobs
from omni_jobs.jobs.read.wait_reasons import wait_reasons
from omni_jobs.jobs.read.waits import Detail
from omni_jobs.jobs.values import Claims, Matches, Outcome, Report, RescueResult, SubmitResult
from omni_jobs.new_job import NewJob, NewVersion
from omni_jobs.observers import Observers
from omni_jobs.states import JobState
from omni_jobs.views import JobView

T = TypeVar("T")
P = ParamSpec("P")


def _writes(verb: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate["Jobs", P], T]:
    """Make a method of a verb, which does it in a writing transaction."""

    @wraps(verb)
    def method(jobs: "Jobs", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return jobs._run(lambda tx: verb(tx, *args, **kwargs))

    return method


def _reads(query: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate["Jobs", P], T]:
    """Make a method of a query, which makes it in a transaction that reads one state."""

    @wraps(query)
    def method(jobs: "Jobs", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return jobs._db.read(lambda tx: query(tx, *args, **kwargs))

    return method


class Jobs:
    """The jobs, stage runs and workers of one database: all changes of their states, and all queries. Safe for threads.

    A method is one transaction (``rescue`` and ``calibrate``: a few). It may be called again when its answer was lost,
    though ``retry`` may raise Conflict then, and ``delete`` NotFound. The caller rings the doorbells of the queues that
    a method returns. Every method may raise DatabaseUnavailable.
    """

    def __init__(
        self,
        db: Database,
        *,
        prune_after_s: float = 0.0,
        only_known_tenants: bool = False,
        observers: Iterable[JobsObserver] = (),
    ) -> None:
        """Keep jobs in this database, whose schema is migrated, and tell the observers of the transitions made here.

        ``only_known_tenants``: submits and retries for a tenant without a row are refused as Unauthenticated.
        The pruner first reads a job that left no payloads ``prune_after_s`` after its end. Give
        ``Retention.without_payloads_s``, because before that nothing is due.
        """
        self._db = db
        self._prune_after_s = prune_after_s
        self._only_known_tenants = only_known_tenants
        self._observers = Observers(observers)

    def _run(self, transaction: Callable[[Connection], T]) -> T:
        """Run a transaction, and tell the observers of its transitions once it is committed."""
        return run_noting(self._db, transaction, lambda changes: self._observers.tell(JobsObserver.changed, changes))

    # A job's life.

    def submit_all(self, jobs: Sequence[NewJob]) -> list[SubmitResult | OmniJobsError]:
        """Write jobs with their stage runs in one transaction, and return the results in the same order.

        :func:`omni_jobs.jobs.life.submit.submit` says what they are: an error for one job harms no other.
        """
        if not jobs:
            return []
        rows = [submit.rows_of(job) for job in jobs]  # SQLite's other writers wait for the transaction
        return self._run(lambda tx: submit.submit(tx, rows, self._only_known_tenants))

    def claim(
        self,
        worker_id: str,
        at_most: int,
        *,
        reports: Sequence[Report] = (),
        of_high: int = 0,
        is_idle: bool = True,
        held: Collection[int] = (),
        again: bool = False,
    ) -> Claims:
        """Record ``reports`` as ``report`` does, and claim stage runs for a worker in the same transaction.

        :func:`omni_jobs.jobs.life.claim.claim` says which. Raises Fenced as it does; nothing is recorded then.

        Args:
            held: the ids of all stage runs that the worker knows it holds.
            again: whether the answer of the claim before was lost. If that had claimed stage runs, they are returned,
                and no others.
        """

        def transaction(tx: Connection) -> Claims:
            nonlocal again
            is_repeated, again = again, True  # the answer of a try is lost if another one follows
            outcomes = report.report(tx, reports, self._prune_after_s)
            # What was handed back may have been claimed anew by the try whose answer was lost.
            known = set(held).difference(each.stage_run_id for each in reports) if is_repeated else None
            return claim.claim(tx, worker_id, at_most, of_high, is_idle, known)._replace(outcomes=outcomes)

        return self._run(transaction)

    report_progress = _writes(report_progress)
    record_snapshots = _writes(record_snapshots)

    def report(self, reports: Sequence[Report]) -> Sequence[Outcome]:
        """Record in one transaction how attempts have ended, and return the outcomes in the same order.

        :func:`omni_jobs.jobs.life.report.report` says what becomes of each.
        """
        return self._run(lambda tx: report.report(tx, reports, self._prune_after_s))

    def cancel(self, job_id: str, tenant: str | None = None, *, by: str | None = None) -> JobState:
        """Cancel a job, and return its state afterwards. Raises NotFound, also for a job of another ``tenant``.

        ``by``, here and below, is the actor whom the audit is to name (``omni_jobs.database.audit.Act``); None: nobody.
        """
        act = new_act(by, "cancel")
        return self._run(lambda tx: report.cancel(tx, job_view.owned(tx, job_id, tenant), act))

    def retry(
        self,
        job_id: str,
        from_stage: str | None = None,
        artifacts: Mapping[str, str] | None = None,
        *,
        by: str | None = None,
        states: Collection[JobState] | None = None,
        as_step: tuple[ActionTurn, ActionStep] | None = None,
        onto: NewVersion | None = None,
    ) -> set[str]:
        """Run an ended job again, as its user wishes, and return the queues to ring.

        :func:`omni_jobs.jobs.life.retry_job.retry` says which of its stages run, and what it raises. ``as_step``: the
        step of an action that this is, which is taken in the same transaction. It raises Fenced, as ``note_step`` does.
        """
        token, act = secrets.token_hex(8), new_act(by, "retry")  # the same in each try of the transaction

        def retry(tx: Connection) -> set[str]:
            known = self._only_known_tenants
            return retry_job.retry(tx, job_id, from_stage, artifacts or {}, token, known, act, states, onto)

        def transaction(tx: Connection) -> set[str]:
            if as_step is None:
                return retry(tx)
            queues: set[str] = set()  # none if an earlier try has retried it: workers find the work when they poll
            (turn, step) = as_step

            def change() -> ActionStep:
                queues.update(retry(tx))
                return step

            action_turns.take_step(tx, turn, change)
            return queues

        return self._run(transaction)

    retries = _reads(retry_job.retries)
    withdraw = _writes(withdraw)
    origin = _reads(fork_job.origin)

    def fork(self, job: NewJob, *, by: str | None = None) -> SubmitResult:
        """Write a job that takes over the earlier stages of another one, and return its result.

        :func:`omni_jobs.jobs.life.fork_job.fork` says which, and what it raises.
        """
        rows, act = submit.rows_of(job), new_act(by, "fork")
        return self._run(lambda tx: fork_job.fork(tx, rows, self._only_known_tenants, act))

    abandoned = _reads(abandoned)

    def ask_for(self, job_ids: Sequence[str]) -> None:
        """Note that somebody asks for these jobs. Write only for abandoned ones, because many ask and few are."""
        if left := self.abandoned(job_ids):
            self._run(lambda tx: ask_for(tx, left))

    def get_asked(self, job_id: str, tenant: str | None = None, detail: Detail = Detail.FINE) -> JobView:
        """Return the view of a job, as ``get`` does, to somebody who asks for the job, so that it goes on."""
        view, is_left = self._db.read(lambda tx: job_view.view_and_whether_left(tx, job_id, tenant, detail))
        if is_left and not view.status.is_final:
            self._run(lambda tx: ask_for(tx, [job_id]))
        return view

    def take_try(self, tenant: str, request: str, number: int) -> FirstTry | None:
        """Return a request that is sent again, as :func:`omni_jobs.jobs.life.first_tries.take_try` says."""
        taken: FirstTry | None = None

        def transaction(tx: Connection) -> FirstTry | None:
            nonlocal taken
            if taken is None:
                taken = take_try(tx, tenant, request, number)
            else:  # the answer of the try before may be lost, after its commit
                keep_try(tx, taken)
            return taken

        return self._run(transaction)

    def note_requests(
        self,
        *,
        begun: Sequence[FirstTry] = (),
        lost: Sequence[FirstTry] = (),
        ended: Sequence[FirstTry] = (),
        left: Sequence[str] = (),
    ) -> None:
        """Note what becomes of requests that wait for their jobs, all in one transaction.

        Args:
            begun: those that are about to submit, and whose clients may send them again.
            lost: those whose clients got no answer, or an error.
            ended: those whose clients have their answers.
            left: the ids of the jobs whose clients have left.
        """

        def transaction(tx: Connection) -> None:
            begin_tries(tx, begun)
            lose_tries(tx, lost)
            end_tries(tx, ended)
            abandon(tx, left)

        self._run(transaction)

    def advance(self, job_id: str, tenant: str | None = None, *, by: str | None = None) -> None:
        """Bring a job that nobody has started to the front of its tenant's line, as ``advance_all`` does.

        Raises NotFound, also for a job of another ``tenant``, and Conflict for one that stays where it is.
        """
        act = new_act(by, "advance")

        def transaction(tx: Connection) -> None:
            if job_id not in advance.advance(tx, [job_view.owned(tx, job_id, tenant)], act):
                has_begun = job_view.job_view(tx, job_id, tenant).status is not JobState.QUEUED
                many = f"more than {advance.MOST_BEFORE:,} jobs of its tenant stand before it, or it changes right now"
                raise Conflict("the job has begun or ended" if has_begun else many, field="job_id")

        self._run(transaction)

    def delete(self, job_id: str, tenant: str | None = None, *, by: str | None = None) -> None:
        """Delete a job that has ended. Raises Conflict before that, and NotFound, also for a job of another ``tenant``.

        A repeated call with a ``tenant`` raises NotFound too, because nothing tells whose the job was.
        """
        act = new_act(by, "delete")
        self._run(lambda tx: delete_job(tx, job_view.owned(tx, job_id, tenant), act))

    def cancel_all(
        self, job_ids: Sequence[str], *, by: str | None = None, states: Collection[JobState] | None = None
    ) -> set[str]:
        """Cancel those of these jobs that are queued or in progress, in one transaction, and return their ids.

        ``states``: only those that are in one of them.
        """
        act = new_act(by, "cancel")
        return self._of_any_try(partial(report.cancel_all, job_ids=job_ids, act=act, states=states))

    def advance_all(self, job_ids: Sequence[str], *, by: str | None = None) -> set[str]:
        """Bring those of these jobs that nobody has started to the front of their tenants' lines, and return their ids.

        :func:`omni_jobs.jobs.order.advance.advance` says which stay where they are.
        """
        return self._of_any_try(partial(advance.advance, job_ids=job_ids, act=new_act(by, "advance")))

    def delete_all(
        self, job_ids: Sequence[str], *, by: str | None = None, states: Collection[JobState] | None = None
    ) -> set[str]:
        """Delete those of these jobs that have ended, in one transaction, and return their ids.

        ``states``: only those that are in one of them.
        """
        return self._of_any_try(partial(delete_jobs, job_ids=job_ids, act=new_act(by, "delete"), states=states))

    def _of_any_try(self, verb: Callable[[Connection], set[str]]) -> set[str]:
        """Return the ids that any try of a transaction returned, because one whose answer was lost may have done it."""
        changed: set[str] = set()

        def transaction(tx: Connection) -> None:
            changed.update(verb(tx))

        self._run(transaction)
        return changed

    # An action on the jobs that match a filter, which goes on from where it stands.

    def begin_action(self, new: NewAction) -> None:
        """Begin an action, as :func:`omni_jobs.jobs.crew.actions.begin` says. An action with its id is the same."""
        act = Act(new.actor, "begin_action")
        self._db.run(lambda tx: actions.begin(tx, new, act))

    def take_action(self) -> ActionTurn | None:
        """Take an action, as :func:`omni_jobs.jobs.crew.action_turns.take` says. Writes nothing if there is none."""
        holder = secrets.token_hex(8)
        return self._db.run(lambda tx: action_turns.take(tx, holder)) if self._db.read(action_turns.is_due) else None

    def note_step(self, turn: ActionTurn, step: ActionStep) -> ActionTurn:
        """Note a step that changes no job, and return the turn for the next one.

        Raises Fenced if the action has ended, or somebody else has taken it.
        """
        return self._db.run(lambda tx: action_turns.take_step(tx, turn, lambda: step))

    def change_group(self, turn: ActionTurn, found: Matches) -> ActionTurn:
        """Do what an action does to these jobs, as :func:`omni_jobs.jobs.crew.action_turns.change_group` says."""
        act = Act(turn.actor, turn.verb)
        return self._run(lambda tx: action_turns.change_group(tx, turn, found, act))

    renew_action = _writes(action_turns.renew)
    let_go_action = _writes(action_turns.let_go)
    fail_action = _writes(action_turns.fail)

    def stop_action(self, action_id: str, tenant: str | None = None, *, by: str) -> None:
        """Stop an action, as :func:`omni_jobs.jobs.crew.actions.stop` says."""
        act = Act(by, "stop_action")
        self._db.run(lambda tx: actions.stop(tx, action_id, tenant, act))

    # A worker's life.

    slot_holder = _reads(lease.slot_holder)
    register_worker = _writes(lease.register_worker)
    renew = _writes(lease.renew)
    wishes = _reads(lease.wishes)
    retire_worker = _writes(lease.retire_worker)
    forgive = _writes(lease.forgive)

    def drain(self, worker: str, *, by: str | None = None) -> WorkerDrain:
        """Let a worker claim nothing more, as :func:`omni_jobs.jobs.crew.drain.set_drained` says."""
        return self._db.run(partial(set_drained, worker=worker, is_drained=True, act=new_act(by, "drain")))

    def undrain(self, worker: str, *, by: str | None = None) -> WorkerDrain:
        """Let a worker claim again. The caller rings its stage's queue. Raises NotFound."""
        return self._db.run(partial(set_drained, worker=worker, is_drained=False, act=new_act(by, "undrain")))

    # A stage's pause.

    def pause(self, stage: StageId, *, version: str | None = None, by: str | None = None) -> None:
        """Pause a stage, as :func:`omni_jobs.jobs.order.paused_stages.pause` says."""
        self._run(partial(paused.pause, stage=stage, version=version, act=new_act(by, "pause")))

    def resume(self, stage: StageId, *, version: str | None = None, by: str | None = None) -> None:
        """End a stage's pauses, as :func:`omni_jobs.jobs.order.paused_stages.resume` says."""
        self._run(partial(paused.resume, stage=stage, version=version, act=new_act(by, "resume")))

    paused_stages = _reads(paused.paused_stages)

    # A pipeline's version.

    known_versions = _reads(versions.known_versions)
    tell_versions = _writes(versions.tell_versions)
    version_work = _reads(versions.version_work)

    def set_draining(self, reference: str, *, is_draining: bool, by: str | None = None) -> KnownVersion:
        """Let a version take no new jobs, or let it take them again.

        :func:`omni_jobs.jobs.order.pipeline_versions.set_draining` says more, and what it raises.
        """
        act = new_act(by, "drain_version" if is_draining else "serve_version")
        return self._db.run(lambda tx: versions.set_draining(tx, reference, is_draining, act))

    # What cannot serve.

    down_engines = _reads(down_engines)

    # The embedded stack.

    def note_kill(self, process: str, *, by: str) -> None:
        """Note in the audit that somebody has a process of the embedded stack killed, which its supervisor does."""
        act = Act(by, "kill")
        self._db.run(lambda tx: act.note(tx, process, None))

    # The rescuer's rounds.

    def rescue(self, presence: DatabasePresence | None = None) -> RescueResult:
        """Do one round of the rescuer; :func:`omni_jobs.jobs.crew.rescue.rescue` says of what."""
        return rescue.rescue(self._run, self._db.read, presence)

    def calibrate(self) -> None:
        """Note what became of the estimates that are kept, make later ones better by it, and keep a few new ones.

        The rescuer calls it with every round, one transaction a stage. Several processes may call it at once.
        """
        for line in self._db.read(calibrate.lines):
            self._run(partial(calibrate.calibrate, line=line))

    def sample(self) -> Mapping[VersionStage, StageStanding] | None:
        """Take the sample of these ten seconds, and return how the stages stand; None if somebody has taken it.

        :func:`omni_jobs.jobs.crew.sample.sample` says what it is. It is one transaction that writes, after two that
        read. Several processes may call it at once.
        """
        if not self._db.read(sample.is_due):
            return None
        standings = self._db.read(sample.standings)
        return standings if self._run(partial(sample.sample, standing=standings)) else None

    # Retention.

    prune = _writes(prune)
    hasten = _writes(hasten)
    garbage = _reads(garbage)
    forget_garbage = _writes(forget_garbage)
    orphans = _reads(orphans)
    prune_usage = _writes(usage.prune)
    prune_audit = _writes(audit.prune)
    prune_actions = _writes(actions.prune)
    still_shared = _reads(still_shared)
    hold_deletes = _writes(hold_deletes)
    end_hold = _writes(end_hold)
    deletes_are_held = _reads(deletes_are_held)

    # Queries. ``tenant`` is the one that asks: the jobs of others are for it as if they never were. None sees all.

    get = _reads(job_view.job_view)
    admitted_request = _reads(job_view.admitted_request)
    glances = _reads(glances)
    watch = _writes(watched.watch)
    text_pieces = _reads(watched.text_pieces)
    made_text = _reads(watched.made_text)
    known_keys = _reads(known_keys)
    known_submits = _reads(known_submits)
    list = _reads(job_list)
    matching = _reads(matching)
    video_job = _reads(video_job)
    video_jobs = _reads(video_jobs)
    events = _reads(job_view.events)
    artifact = _reads(job_view.artifact)
    payloads = _reads(payloads)
    counts = _reads(counts)
    backlog = _reads(queued_jobs)
    jobs_in_progress = _reads(jobs_in_progress)
    media_bytes = _reads(media_bytes)
    tally = _reads(tally)
    usage = _reads(usage.report)
    stored_bytes = _reads(of_tenant)
    calibrations = _reads(calibrations)
    stage_samples = _reads(stage_samples)
    sampled_s_ago = _reads(sampled_s_ago)
    acts = _reads(acts)
    action = _reads(actions.action)
    actions = _reads(actions.actions)
    error_kinds = _reads(error_kinds)
    error_counts = _reads(error_counts)
    workers = _reads(lease.workers)
    stage_crew = _reads(stage_crew)
    wait_reasons = _reads(wait_reasons)
