"""The checker: SQL and the object store, read in its own words, against each other and the clients.

Nothing of :mod:`omni_jobs.jobs` or :mod:`omni_jobs.storage` is used: their mistakes must not hide
themselves. ``Sampler`` looks while the faults go on, ``check`` once everything has settled.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import xxhash
from sqlalchemy import Connection, Engine, exc, inspect, text

from tests.chaos.clients import FINAL, Record
from tests.chaos.pipeline_files import ASKING, FILM, MEDIA
from tests.chaos.stack import NOTES_OF_REQUESTS
from tests.chaos.stock_clients import ANSWERED, Asked
from tests.services.seaweedfs import SeaweedFS

__all__ = ["Checked", "Sampler", "StoredBytes", "check"]

LOOK_EVERY_S = 2.0
_MOST_SAID = 20  # sentences of one kind
_OF_READINESS = {"write-check"}  # the object by which readiness sees that the store takes writes
FINAL_EVENTS = tuple(f"job.{state}" for state in FINAL)

_SUCCEEDED = text(
    "SELECT id, job_id, attempt, owner, finished_at FROM stage_runs WHERE state = 'succeeded' AND finished_at > :since"
)
# Each of these, at any moment, has no row.
_NEVER = {
    "a job has ended and a stage of it waits": (
        "SELECT j.id, j.state, s.id AS run, s.state AS run_state FROM jobs j JOIN stage_runs s ON s.job_id = j.id"
        " WHERE s.state IN ('queued', 'pending') AND j.state IN ('completed', 'failed', 'cancelled', 'expired')"
    ),
    "a job has ended and a stage of it runs": (
        "SELECT j.id, j.state, s.id AS run, s.state AS run_state FROM jobs j JOIN stage_runs s ON s.job_id = j.id"
        " WHERE s.state = 'running' AND j.state IN ('completed', 'cancelled', 'expired')"
    ),
    "a stage run is running for nobody": "SELECT id, job_id FROM stage_runs WHERE state = 'running' AND owner IS NULL",
    "a worker runs a job of another pipeline file than its own": (
        "SELECT s.id, s.job_id, w.id AS worker FROM stage_runs s JOIN workers w ON w.id = s.owner"
        " JOIN jobs j ON j.id = s.job_id"
        " WHERE s.state IN ('running', 'succeeded') AND j.pipeline_digest <> w.pipeline_digest"
    ),
    "a stage run has succeeded without an attempt": (
        "SELECT id, job_id FROM stage_runs WHERE state = 'succeeded' AND attempt < 1 AND taken_from IS NULL"
    ),
}


FORGOTTEN_S = 20.0  # rescuers make a round each half second
ORPHAN_S = 60.0  # an object of nobody's must be gone by then, with a chaos stack's short times to live


@dataclass
class Checked:
    """``lost``: accepted, and not in SQL. ``doubled``: two jobs or outcomes. ``stuck``: never ended."""

    lost: int = 0
    doubled: int = 0
    stuck: int = 0
    wasted_runs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)  # jobs by NAME@VERSION
    errors: Counter[str] = field(default_factory=Counter)  # codes of failed jobs
    flooded: list[tuple[str, float, str]] = field(
        default_factory=list
    )  # failed jobs of the remote stage: id, end, code
    attempt_errors: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    objects: int = 0
    orphans: int = 0
    _said: Counter[str] = field(default_factory=Counter)

    def say(self, kind: str, sentence: str) -> None:
        self._said[kind] += 1
        if self._said[kind] <= _MOST_SAID:
            self.violations.append(f"{kind}: {sentence}")
        elif self._said[kind] == _MOST_SAID + 1:
            self.violations.append(f"{kind}: … and more")


class Sampler(threading.Thread):
    """Looks every few seconds at what must hold at every moment."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="sampler", daemon=True)
        self.violations: list[str] = []
        self.succeeded: dict[int, tuple[str, int, str | None, float]] = {}  # run → job, attempt, owner, finished
        self.files: dict[str, str] = {}  # worker → digest of its pipeline file
        self.pipelines: dict[str, str] = {}  # worker → its pipeline
        self.looks = 0
        self._engine = engine
        self._since = 0.0
        self._stopping = threading.Event()
        self._said: set[str] = set()

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                with self._engine.connect() as connection:
                    self._look(connection)
            except exc.DBAPIError:
                continue  # it is down, as faults will have it
            self.looks += 1

    def _look(self, connection: Connection) -> None:
        for row in connection.execute(_SUCCEEDED, {"since": self._since - 15}):
            found = (row.job_id, row.attempt, row.owner, row.finished_at)
            self.succeeded.setdefault(row.id, found)
            self._since = max(self._since, row.finished_at)
        for row in connection.execute(text("SELECT id, pipeline, pipeline_digest FROM workers")):
            self.files[row.id] = row.pipeline_digest
            self.pipelines[row.id] = row.pipeline
        for what, query in _NEVER.items():
            for row in connection.execute(text(query)):
                self._say(f"{what}: {dict(row._mapping)}")

    def _say(self, sentence: str) -> None:
        if sentence not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(sentence)
            self.violations.append(sentence)


@dataclass(frozen=True)
class StoredBytes:
    """The object store as its bytes: a directory, or a bucket's prefix."""

    directory: Path | None
    s3: SeaweedFS | None

    def list(self) -> Iterator[tuple[str, int, float]]:
        """Key, size, and when it was stored."""
        if self.s3 is None:
            root = self.directory
            if root is None:
                raise ValueError("neither a directory nor S3")
            for path in root.rglob("*"):
                key = path.relative_to(root).as_posix().replace(",", "/")
                if path.is_file() and not key.startswith("."):
                    about = path.stat()
                    yield key, about.st_size, about.st_mtime
            return
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=self.s3.bucket, Prefix="chaos/")
        for page in pages:
            for found in page.get("Contents", ()):
                yield found["Key"].removeprefix("chaos/"), found["Size"], found["LastModified"].timestamp()

    def read(self, key: str) -> bytes | None:
        """None when it is not there."""
        if self.s3 is None:
            shelf, shard, name = key.split("/", 2)
            path = Path(self.directory or ".") / shelf / shard / name.replace("/", ",")
            return path.read_bytes() if path.is_file() else None
        client = self._client()
        try:
            body: bytes = client.get_object(Bucket=self.s3.bucket, Key=f"chaos/{key}")["Body"].read()
        except client.exceptions.NoSuchKey:
            return None
        return body

    def _client(self) -> Any:
        if self.s3 is None:
            raise ValueError("no S3")
        return boto3.client("s3", endpoint_url=self.s3.endpoint_url, region_name="us-east-1")


def unfinished(engine: Engine) -> int:
    """Jobs that have not ended."""
    finals = ", ".join(f"'{state}'" for state in FINAL)
    with engine.connect() as connection:
        count: int = connection.execute(text(f"SELECT count(*) FROM jobs WHERE state NOT IN ({finals})")).scalar_one()
    return count


def unreferenced(engine: Engine, objects: StoredBytes) -> list[tuple[str, int, float]]:
    """Objects that no row of SQL names, and readiness did not put: key, size, when it was stored."""
    with engine.connect() as connection:
        queries = ("SELECT payload_ref FROM stage_runs WHERE payload_ref IS NOT NULL", "SELECT ref FROM artifacts")
        named = {json.loads(ref)["key"] for query in queries for ref in connection.execute(text(query)).scalars()}
        for media in connection.execute(text("SELECT media FROM jobs")).scalars():
            named |= {each["key"] for each in json.loads(media)}
    return [each for each in objects.list() if each[0] not in named | _OF_READINESS]


def wait_until_collected(engine: Engine, objects: StoredBytes) -> None:
    """Wait until what nobody refers to is gone, as long as that may take."""
    until = time.monotonic() + ORPHAN_S
    while time.monotonic() < until and unreferenced(engine, objects):
        time.sleep(0.5)


def notes_of_requests(engine: Engine) -> dict[str, int]:
    """How many rows the tables have in which requests are noted, of those that have any."""
    with engine.connect() as connection:
        counts = {name: connection.execute(text(f"SELECT count(*) FROM {name}")) for name in NOTES_OF_REQUESTS}
        return {name: count for name, rows in counts.items() if (count := rows.scalar_one())}


def wait_until_forgotten(engine: Engine) -> None:
    """Wait until no request is noted, as long as a few rounds of the rescuers may take."""
    until = time.monotonic() + FORGOTTEN_S
    while time.monotonic() < until and notes_of_requests(engine):
        time.sleep(0.2)


def check(
    engine: Engine,
    objects: StoredBytes,
    records: Sequence[Record],
    sampler: Sampler,
    *,
    asked: Sequence[Asked] = (),
    echoes: bool = True,
) -> Checked:
    """Everything, once it has settled and the collector has had its time.

    ``asked``: by stock clients. ``echoes``: the jobs are those of the echo pipelines.
    """
    checked = Checked()
    orphans = unreferenced(engine, objects)
    with engine.connect() as connection:
        jobs = {row.id: row._mapping for row in connection.execute(text("SELECT * FROM jobs"))}
        runs: dict[str, list[Mapping[Any, Any]]] = {}
        by_id: dict[int, Mapping[Any, Any]] = {}
        for row in connection.execute(text("SELECT * FROM stage_runs ORDER BY job_id, position")):
            runs.setdefault(row.job_id, []).append(row._mapping)
            by_id[row.id] = row._mapping
        artifacts = [row._mapping for row in connection.execute(text("SELECT * FROM artifacts"))]
        failures = [row._mapping for row in connection.execute(text("SELECT * FROM attempt_errors"))]
        has_events = "events" in inspect(connection).get_table_names()
        events = (
            [row._mapping for row in connection.execute(text("SELECT * FROM events ORDER BY job_id, number"))]
            if has_events
            else []
        )
    _check_clients(checked, records, _check_asked(checked, asked, jobs))
    for name, count in notes_of_requests(engine).items():
        checked.say("left behind", f"{name} has {count} rows, of requests that are long over")
    for job_id, job in jobs.items():
        _check_job(checked, job, runs.get(job_id, []), echoes)
    _check_attempts(checked, by_id, failures)
    _check_sampled(checked, sampler, jobs, by_id)
    _check_files(checked, sampler, jobs, by_id)
    if has_events:
        _check_events(checked, jobs, events)
    _check_objects(checked, objects, by_id, artifacts, jobs, orphans, has_events)
    checked.violations += sampler.violations
    return checked


def _check_asked(
    checked: Checked, asked: Sequence[Asked], jobs: Mapping[str, Mapping[Any, Any]]
) -> dict[str, Mapping[Any, Any]]:
    """What stock clients were told, against SQL. Returns the jobs that are none of theirs."""
    by_text: dict[str, list[str]] = {}
    for job_id, job in jobs.items():
        by_text.setdefault(_text_of(job), []).append(job_id)
    theirs: set[str] = set()
    for each in asked:
        there = by_text.get(each.text, [])
        theirs.update(there)
        about = f"{each.kind} of {each.job_id} ({each.text}), {each.outcome or 'open'}"
        if len(there) > 1:
            checked.doubled += 1
            checked.say("doubled", f"{about}: made {there}")
        if each.job_id is not None and each.job_id not in there:
            checked.lost += 1
            checked.say("lost", f"{about}: SQL has {there}")
        for job_id in there:
            if jobs[job_id]["tenant"] != each.tenant:
                checked.say("tenant", f"{about}: of {jobs[job_id]['tenant']}, not {each.tenant}")
            if each.outcome == ANSWERED and jobs[job_id]["state"] != "completed":
                checked.say("answer", f"{about}: it is {jobs[job_id]['state']}")
    return {job_id: job for job_id, job in jobs.items() if job_id not in theirs}


def _text_of(job: Mapping[Any, Any]) -> str:
    """The text of a job's last message."""
    messages = json.loads(job["request"]).get("messages") or [{"content": ""}]
    content = messages[-1]["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _check_clients(checked: Checked, records: Sequence[Record], jobs: Mapping[str, Mapping[Any, Any]]) -> None:
    """What the clients were told, against SQL."""
    by_key: dict[str, list[str]] = {}
    for job_id, job in jobs.items():
        by_key.setdefault(job["idempotency_key"], []).append(job_id)
    for record in records:
        about = f"{record.job_id} ({record.key})"
        there = by_key.pop(record.key, [])
        if len(there) > 1:
            checked.doubled += 1
            checked.say("doubled", f"{record.key} made {there}")
        if record.refused:
            if there:
                checked.say("refused", f"{record.key} was refused as a fork; SQL has {there}")
            continue
        if record.job_id is None:
            checked.say("in doubt", f"{record.key} was never answered; SQL has {there}")
            continue
        if record.deleted or (record.delete_doubt and not there):
            if there and record.deleted:
                checked.say("deleted", f"{about} is still in SQL")
            continue
        if record.job_id not in jobs:
            checked.lost += 1
            checked.say("lost", f"{about} was accepted and is not in SQL, which has {there} for the key")
            continue
        job = jobs[record.job_id]
        if (job["tenant"], job["priority"]) != (record.tenant, record.priority):
            asked = f"{record.tenant}, {record.priority}"
            checked.say("tenant", f"{about} is of {job['tenant']}, {job['priority']}: it was submitted for {asked}")
        if record.job_id not in there:
            checked.doubled += 1
            checked.say("doubled", f"{about} has the key {job['idempotency_key']} in SQL")
        if record.final is None:
            if job["state"] in FINAL:
                checked.say("view", f"{about} is {job['state']} in SQL, the client never saw it end: {record.status}")
            continue
        if record.final["status"] != job["state"]:
            checked.doubled += 1
            checked.say("doubled", f"{about} ended as {record.final['status']} for the client, is {job['state']}")
    for key, there in by_key.items():
        checked.say("from nowhere", f"{there} has the key {key}, which no client used")


def _check_job(checked: Checked, job: Mapping[Any, Any], runs: Sequence[Mapping[Any, Any]], echoes: bool) -> None:
    """One job's rows against each other."""
    state, states = job["state"], [run["state"] for run in runs]
    of_stages = {run["stage"]: run["state"] for run in runs}
    about = f"{job['id']} is {state}, its stages {of_stages}"
    checked.outcomes[state] += 1
    checked.versions[f"{job['pipeline']}@{job['pipeline_version']}"] += 1
    checked.wasted_runs += sum(max(0, run["attempt"] - 1) for run in runs)
    if state not in FINAL:
        checked.stuck += 1
        details = [
            (run["id"], run["state"], run["attempt"], run["owner"], run["due"], run["turn"], run["apart"])
            for run in runs
        ]
        checked.say("stuck", f"{about}: {details}")
        return
    if job["finished_at"] is None:
        checked.say("job", f"{about}, and has no end")
    if not runs or (echoes and len(runs) != (1 if job["pipeline"] in (ASKING, MEDIA) else 2)):
        checked.say("job", f"{about}: not its stage runs")
        return
    if any(each not in ("succeeded", "failed", "cancelled") for each in states):
        checked.say("job", about)
    if {run["pipeline_digest"] for run in runs} != {job["pipeline_digest"]}:
        files = {run["stage"]: run["pipeline_digest"] for run in runs}
        checked.say("version", f"{about}: it is of {job['pipeline_digest']}, its stage runs of {files}")
    if not job["retries"] and len({run["turn"] for run in runs}) != 1:
        checked.say("turn", f"{about}: its stage runs have the turns {[run['turn'] for run in runs]}")
    if state == "completed":
        _check_completed(checked, about, job, runs, echoes)
    elif all(each == "succeeded" for each in states):
        checked.say("job", f"{about}: nothing is left to do")
    if state == "failed":
        error = json.loads(job["error"] or "{}")
        code = error.get("code", "none")
        if job["pipeline"] == ASKING:
            checked.flooded.append((job["id"], job["finished_at"], code))
        else:
            checked.errors[code] += 1
        if "failed" not in states:
            checked.say("job", f"{about}, failed without a failed stage")


def _check_completed(
    checked: Checked, about: str, job: Mapping[Any, Any], runs: Sequence[Mapping[Any, Any]], echoes: bool
) -> None:
    """All its stages have succeeded, each after those it takes from, and it says what it must."""
    if any(run["state"] != "succeeded" for run in runs):
        checked.say("job", about)
        return
    by_stage = {run["stage"]: run for run in runs}
    for run in runs:
        for earlier in (by_stage[name] for name in json.loads(run["inputs"])):
            if run["started_at"] < earlier["finished_at"]:
                checked.say("order", f"{about}: {run['stage']} began before {earlier['stage']} had ended")
        if job["finished_at"] < run["finished_at"]:
            checked.say("order", f"{about}: it ended before {run['stage']}")
    if echoes and runs[-1]["stage"] != FILM:
        text_in = _text_of(job)
        if json.loads(runs[-1]["result"] or "{}").get("text") != text_in:
            checked.say("result", f"{about}: {str(runs[-1]['result'])[:200]} for {text_in[:100]!r}")


def _check_attempts(
    checked: Checked, runs: Mapping[int, Mapping[Any, Any]], failures: Sequence[Mapping[Any, Any]]
) -> None:
    """An attempt has one end: an error, or the success that the row tells of."""
    for failure in failures:
        checked.attempt_errors[json.loads(failure["error"]).get("code", "none")] += 1
        run = runs.get(failure["stage_run_id"])
        if run is None:
            checked.say("attempt", f"an error of stage run {failure['stage_run_id']}, which is not there")
        elif failure["attempt"] > run["attempt"]:
            checked.say(
                "attempt", f"stage run {run['id']} of {run['job_id']}: an error of attempt {failure['attempt']}"
            )
        elif run["state"] == "succeeded" and failure["attempt"] == run["attempt"]:
            checked.doubled += 1
            checked.say(
                "doubled", f"stage run {run['id']} of {run['job_id']}: attempt {run['attempt']} failed and succeeded"
            )
    for run in runs.values():
        if run["state"] == "succeeded" and run["owner"] is None and run["taken_from"] is None:
            checked.say("attempt", f"stage run {run['id']} of {run['job_id']} succeeded for nobody")


def _check_sampled(
    checked: Checked, sampler: Sampler, jobs: Mapping[str, Mapping[Any, Any]], runs: Mapping[int, Mapping[Any, Any]]
) -> None:
    """What had succeeded while the faults went on is as it was."""
    for run_id, (job_id, attempt, owner, finished_at) in sampler.succeeded.items():
        run = runs.get(run_id)
        if run is None or jobs[job_id].get("retries"):
            continue
        if (run["state"], run["attempt"], run["owner"], run["finished_at"]) != (
            "succeeded",
            attempt,
            owner,
            finished_at,
        ):
            checked.doubled += 1
            now = {name: run[name] for name in ("state", "attempt", "owner", "finished_at")}
            checked.say(
                "doubled", f"stage run {run_id} of {job_id} had succeeded: {attempt}, {owner}, {finished_at}; is {now}"
            )


def _check_files(
    checked: Checked, sampler: Sampler, jobs: Mapping[str, Mapping[Any, Any]], runs: Mapping[int, Mapping[Any, Any]]
) -> None:
    """What has succeeded was run by workers with the pipeline file of its job."""
    for run in runs.values():
        digest = jobs[run["job_id"]]["pipeline_digest"]
        found = sampler.files.get(run["owner"], digest) if run["state"] == "succeeded" else digest
        if found != digest:
            checked.say(
                "file", f"stage run {run['id']} of {run['job_id']}: its job is of {digest}, {run['owner']} of {found}"
            )


def _check_events(checked: Checked, jobs: Mapping[str, Mapping[Any, Any]], events: Sequence[Mapping[Any, Any]]) -> None:
    """One final event a job and generation."""
    finals: dict[str, list[str]] = {}
    retried: Counter[str] = Counter()
    for event in events:
        if event["type"] in FINAL_EVENTS:
            finals.setdefault(event["job_id"], []).append(event["type"])
        elif event["type"] == "job.retried":
            retried[event["job_id"]] += 1
    for job_id, job in jobs.items():
        if job["state"] not in FINAL:
            continue
        found = finals.get(job_id, [])
        if len(found) != job["retries"] + 1 or retried[job_id] != job["retries"]:
            checked.doubled += len(found) > job["retries"] + 1
            checked.say(
                "events", f"{job_id} is {job['state']} after {job['retries']} retries: {found}, {retried[job_id]}"
            )
        elif found[-1] != f"job.{job['state']}":
            checked.say("events", f"{job_id} is {job['state']}: {found}")


def _check_objects(
    checked: Checked,
    objects: StoredBytes,
    runs: Mapping[int, Mapping[Any, Any]],
    artifacts: Sequence[Mapping[Any, Any]],
    jobs: Mapping[str, Mapping[Any, Any]],
    orphans: Sequence[tuple[str, int, float]],
    collects: bool,
) -> None:
    """Every artifact is there once, with its digest; every object that is there is somebody's."""
    for run in runs.values():
        if run["payload_ref"] is not None and run["taken_from"] is None:
            ref = json.loads(run["payload_ref"])
            if not ref["key"].endswith(f"/{run['attempt']}") and not jobs[run["job_id"]].get("retries"):
                checked.say("winner", f"stage run {run['id']}: attempt {run['attempt']} has the payload {ref['key']}")
    for artifact in artifacts:
        ref = json.loads(artifact["ref"])
        data = objects.read(ref["key"])
        if data is None:
            checked.say("artifact", f"{artifact['job_id']} {artifact['name']}: {ref['key']} is not there")
        elif f"xxh3:{xxhash.xxh3_128_hexdigest(data)}" != ref["digest"] or len(data) != ref["size"]:
            checked.say("artifact", f"{artifact['job_id']} {artifact['name']}: other bytes than {ref}")
    checked.objects = sum(1 for _ in objects.list())
    checked.orphans = len(orphans)
    for key, size, at in orphans:
        if collects:
            checked.say("orphan", f"{key} ({size} bytes, {time.time() - at:.0f} s old) is nobody's")
