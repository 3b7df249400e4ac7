"""Clients: submit jobs over HTTP to either API server, and remember everything they were told.

A job is accepted once a 2xx answer to its submit was seen. After any other end the same
idempotency key is sent again, to whichever server, until the doubt is gone. What a client saw is
compared at once with what it had seen before, and at the end by the checker with SQL.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from omni_jobs.identity import DEFAULT_TENANT
from tests.chaos.pipeline_files import ASKING, ECHO, MAX_PAYLOAD_BYTES
from tests.chaos.stack import TENANT_HEADER, WEIGHTS

__all__ = ["Abilities", "Client", "Clients", "Record"]

TIMEOUT_S = 5.0
OPEN_JOBS = 60  # a client waits for its jobs before it has more than so many
CANCELLED = 0.05
DEADLINED = 0.03
TOO_LARGE = 0.01
ASKED = 0.05  # of the remote stage
RETRIED = 0.3  # of those that failed or were cancelled
DELETED = 0.01
KEEPING = 0.3  # keep their payloads, so that they can be forked
FORKED = 0.3  # of those, each time that it is looked at
FORK_PATIENCE_S = 45.0  # longer than a version drains that takes jobs again, and than a server lacks its file
FINAL = ("completed", "failed", "cancelled", "expired")
TENANTS = (*WEIGHTS, DEFAULT_TENANT, "unknown")  # the last two have no row
PRIORITIES = ("high", "normal", "low")
RANK = {"queued": 0, "in_progress": 1, "cancelling": 2} | dict.fromkeys(FINAL, 3)


@dataclass(frozen=True)
class Abilities:
    """What this build of the API can do, by its OpenAPI document."""

    deadline: bool
    retry: bool
    delete: bool
    priority: bool

    @classmethod
    def of(cls, url: str) -> Abilities:
        document = httpx2.get(f"{url}/openapi.json", trust_env=False, timeout=30).raise_for_status().json()
        paths = document["paths"]
        headers = {each["name"].lower() for each in paths["/v1/jobs"]["post"].get("parameters", ())}
        return cls(
            deadline="cancel-after" in headers,
            retry="/v1/jobs/{job_id}/retry" in paths,
            delete="delete" in paths.get("/v1/jobs/{job_id}", {}),
            priority="priority" in document["components"]["schemas"]["JobRequest"]["properties"],
        )


@dataclass
class Record:
    """What a client knows of one job of its own."""

    key: str
    body: dict[str, Any]
    text: str
    too_large: bool
    cancel_after_s: float | None = None  # the client cancels it so long after it was accepted
    deadline_s: float | None = None
    tenant: str = DEFAULT_TENANT
    priority: str = "normal"
    job_id: str | None = None
    doubts: int = 0  # submits without an answer
    accepted_at: float = 0.0
    try_at: float = 0.0
    give_up_at: float | None = None  # of a fork that its version does not take
    status: str = "queued"  # the last one seen
    final: dict[str, Any] | None = None  # the first final view of this generation
    cancel_at: float | None = None  # when the answer to the cancel came
    cancel_answer: str | None = None
    retries: int = 0  # answered 2xx
    retry_doubts: int = 0  # sent, and no answer
    deleted: bool = False
    delete_doubt: bool = False
    origin: Record | None = None  # of which this is a fork
    keeps_payloads: bool = False
    refused: bool = False  # the origin had not kept what the fork takes

    @property
    def path(self) -> str:
        """Where it is submitted."""
        return "/v1/jobs" if self.origin is None else f"/v1/jobs/{self.origin.job_id}/fork"


class Log:
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, **about: Any) -> None:
        line = json.dumps({"at": round(time.time(), 3), **about}, ensure_ascii=True)
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        with self._lock:
            self._file.close()


@dataclass
class Clients:
    """All of them. ``stop_submitting``, then ``settled`` until it holds, then ``stop``."""

    urls: list[str]
    seed: int
    log: Log
    abilities: Abilities
    rate: float  # jobs a second, together
    most: int | None
    count: int = 6
    violations: list[str] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)  # by HTTP status; 0: none

    def __post_init__(self) -> None:
        self.submitting = threading.Event()
        self.submitting.set()
        self.stopping = threading.Event()
        self._left = self.most
        self._lock = threading.Lock()
        self.clients = [Client(number, self) for number in range(self.count)]

    def start(self) -> None:
        for client in self.clients:
            client.thread.start()

    def may_submit(self) -> bool:
        """Whether one more job may be made; it is counted."""
        if not self.submitting.is_set():
            return False
        with self._lock:
            if self._left is None:
                return True
            self._left -= 1
            return self._left >= 0

    @property
    def records(self) -> list[Record]:
        return [record for client in self.clients for record in list(client.records)]

    @property
    def accepted(self) -> int:
        return sum(client.accepted for client in self.clients)

    @property
    def ended(self) -> int:
        return sum(client.accepted - len(client.open) for client in self.clients)

    def settled(self) -> bool:
        """Nothing in doubt, nothing open."""
        return all(not client.pending and not client.open for client in self.clients)

    def violation(self, sentence: str) -> None:
        with self._lock:
            self.violations.append(sentence)

    def stop(self) -> None:
        self.stopping.set()
        for client in self.clients:
            if client.thread.ident is not None:
                client.thread.join()
        self.log.close()


class Client:
    """One client: its own thread, jobs and random numbers."""

    def __init__(self, number: int, clients: Clients) -> None:
        self.thread = threading.Thread(target=self._run, name=f"client-{number}", daemon=True)
        self.number = number
        self.clients = clients
        self.random = random.Random(f"{clients.seed}/{number}")
        self.records: list[Record] = []
        self.pending: dict[str, Record] = {}
        self.open: dict[str, Record] = {}
        self.accepted = 0
        limits = httpx2.Limits(max_keepalive_connections=2)
        self._http = [
            httpx2.Client(base_url=url, trust_env=False, timeout=TIMEOUT_S, limits=limits) for url in clients.urls
        ]

    def _run(self) -> None:
        pause = self.clients.count / self.clients.rate
        due = time.monotonic() + self.random.random() * pause
        while not self.clients.stopping.is_set():
            now = time.monotonic()
            if now >= due and len(self.open) + len(self.pending) < OPEN_JOBS:
                due = max(due + pause, now - 5 * pause)
                if self.clients.may_submit():
                    self._make()
            self._submit_pending()
            self._observe()
            time.sleep(0.05)
        for http in self._http:
            http.close()

    # -- submit ----------------------------------------------------------------------------

    def _make(self) -> None:
        pick = self.random
        key = f"{self.clients.seed}-{self.number}-{len(self.records)}"
        size = pick.choices((0, 200, 20_000, 1_000_000), (0.3, 0.47, 0.2, 0.03))[0]
        too_large = pick.random() < TOO_LARGE
        text = f"{key} {pick.random()} 讲个故事 📖 " + "x" * (20_000 if pick.random() < 0.03 else 0)
        delays = [
            pick.choice((0, 0.05, 0.3, pick.uniform(0, 1), pick.uniform(0, 2), pick.uniform(0, 2))) for _ in range(2)
        ]
        body = {
            "model": ECHO,
            "messages": [{"role": "user", "content": text}],
            "modalities": ["text"],
            "seed": pick.randrange(2**31),
            "stages": {
                "first": {"delay_s": delays[0], "payload_bytes": MAX_PAYLOAD_BYTES + 1 if too_large else size},
                "second": {"delay_s": delays[1]},
            },
        }
        if pick.random() < ASKED:
            body |= {"model": ASKING, "stages": {}}
            too_large = False
        elif pick.random() < KEEPING:
            body["keep_payloads"] = True
        cancelled = pick.random() < CANCELLED
        record = Record(key, body, text, too_large, pick.uniform(0, 2) if cancelled else None)
        record.keeps_payloads = "keep_payloads" in body
        if self.clients.abilities.deadline and pick.random() < DEADLINED:
            record.deadline_s = pick.choice((1, 2, 5, 20))
        record.tenant = pick.choice(TENANTS)
        if self.clients.abilities.priority:
            record.priority = body["priority"] = pick.choice(PRIORITIES)
        self.records.append(record)
        self.pending[key] = record

    def _submit_pending(self) -> None:
        now = time.monotonic()
        for record in [each for each in self.pending.values() if each.try_at <= now]:
            headers = {"Idempotency-Key": record.key}
            if record.deadline_s is not None:
                headers["Cancel-After"] = str(record.deadline_s)
            answer = self._ask("POST", record.path, record, json=record.body, headers=headers)
            if answer is None or answer.status_code in (429, 503) or self._comes_again(record, answer):
                record.doubts += 1
                record.try_at = time.monotonic() + self.random.uniform(0.2, 1.0)
                continue
            del self.pending[record.key]
            if record.origin is not None and answer.status_code in (404, 409):
                self._refuse(record, record.origin, answer)
                continue
            if answer.status_code not in (200, 202):
                self._violation(f"submit {record.key}: answered {answer.status_code} {answer.text[:300]}")
                continue
            view = answer.json()
            record.job_id, record.accepted_at = view["id"], time.time()
            self.accepted += 1
            self.open[record.key] = record
            if answer.status_code == 200 and not record.doubts:
                self._violation(f"submit {record.key}: 200 for a key that was never used")
            self._see(record, view)

    @staticmethod
    def _comes_again(record: Record, answer: httpx2.Response) -> bool:
        """Whether the version takes no jobs just now, by this answer, and the client submits again later.

        A job goes to the next version at last; a fork has that of its origin, and is given up.
        """
        if not (_is_draining(answer) or _lacks_file(answer)):
            return False
        record.give_up_at = record.give_up_at or time.monotonic() + FORK_PATIENCE_S
        return record.origin is None or time.monotonic() < record.give_up_at

    def _fork(self, origin: Record) -> None:
        """Fork a job that has completed; the fork is submitted as other jobs are."""
        pick = self.random
        priority = pick.choice(PRIORITIES)
        body = {
            "from_stage": "second",
            "stages": {"second": {"delay_s": pick.choice((0, 0.3, pick.uniform(0, 2)))}},
            "seed": pick.randrange(2**31),
            "priority": priority,
        }
        record = Record(f"{self.clients.seed}-{self.number}-{len(self.records)}", body, origin.text, too_large=False)
        record.tenant, record.priority = origin.tenant, priority
        record.origin, record.keeps_payloads = origin, True
        if pick.random() < CANCELLED:
            record.cancel_after_s = pick.uniform(0, 2)
        self.records.append(record)
        self.pending[record.key] = record

    def _refuse(self, record: Record, origin: Record, answer: httpx2.Response) -> None:
        """Note that a fork was refused, which must have its reason."""
        record.refused = True
        error = answer.json()["error"]
        is_gone = answer.status_code == 404 and (origin.deleted or origin.delete_doubt)
        is_kept_no_longer = error["code"] == "conflict" and "not kept any longer" in error["message"]
        origin.keeps_payloads = not (is_kept_no_longer or _is_draining(answer))
        if not (is_gone or is_kept_no_longer or _is_draining(answer)):
            self._violation(f"fork {record.key} of {origin.job_id}: answered {answer.status_code} {answer.text[:300]}")

    # -- observe -----------------------------------------------------------------------------

    def _observe(self) -> None:
        """Look at a few jobs, mostly open ones; cancel what is due."""
        now = time.time()
        for record in list(self.open.values()):
            due = record.cancel_after_s is not None and now >= record.accepted_at + record.cancel_after_s
            if due and record.cancel_answer is None and record.final is None:
                self._cancel(record)
                break
        few = list(self.open.values())
        for record in self.random.sample(few, min(3, len(few))):
            self._look(record)
        if self.records and self.random.random() < 0.2:
            record = self.random.choice(self.records)
            if record.final is not None and record.job_id is not None:
                self._look(record)
                self._disturb(record)

    def _look(self, record: Record) -> None:
        answer = self._ask("GET", f"/v1/jobs/{record.job_id}", record)
        if answer is None or answer.status_code == 503:
            return
        if answer.status_code == 404 and (record.deleted or record.delete_doubt):
            record.deleted = True
            return
        if answer.status_code != 200:
            self._violation(f"{record.job_id} ({record.key}): get answered {answer.status_code} {answer.text[:300]}")
            return
        if record.deleted:
            self._violation(f"{record.job_id} ({record.key}): it was deleted, and is there")
        self._see(record, answer.json())

    def _see(self, record: Record, view: Mapping[str, Any]) -> None:
        """Compare with what was seen before."""
        if view["id"] != record.job_id:
            self._violation(f"{record.key}: was {record.job_id}, is {view['id']}")
        status, before = view["status"], record.status
        if record.final is not None:
            seen = {name: view[name] for name in record.final}
            if seen != record.final:
                self._violation(f"{record.job_id} ({record.key}): was final {record.final}, is {seen}")
            return
        if RANK[status] < RANK[before]:
            self._violation(f"{record.job_id} ({record.key}): went from {before} back to {status}")
        record.status = status
        if status not in FINAL:
            return
        record.final = {name: view[name] for name in ("status", "finished_at", "result", "error")}
        self.open.pop(record.key, None)
        self.clients.log.write(client=self.number, op="final", key=record.key, job=record.job_id, status=status)
        if trouble := self._wrong(record, view):
            self._violation(f"{record.job_id} ({record.key}): {trouble}")

    @staticmethod
    def _wrong(record: Record, view: Mapping[str, Any]) -> str | None:
        """What about this final view contradicts what the client asked for."""
        status = view["status"]
        if status == "completed":
            if record.too_large:
                return "completed with a payload that is too large"
            if (view["result"] or {}).get("text") != record.text:
                return f"another result: {str(view['result'])[:200]}"
            if record.cancel_answer in ("cancelling", "cancelled"):
                return f"the cancel was answered {record.cancel_answer}, the job is completed"
        elif status == "cancelled" and record.cancel_at is None and record.cancel_after_s is None:
            return "cancelled, by nobody"
        elif status == "expired" and record.deadline_s is None:
            return "expired without a deadline"
        elif status == "failed" and view["error"] is None:
            return "failed without an error"
        return None

    # -- change --------------------------------------------------------------------------------

    def _cancel(self, record: Record) -> None:
        answer = self._ask("POST", f"/v1/jobs/{record.job_id}/cancel", record)
        if answer is None or answer.status_code == 503:
            return
        if answer.status_code != 200:
            self._violation(f"{record.job_id}: cancel answered {answer.status_code} {answer.text[:300]}")
            return
        record.cancel_at, record.cancel_answer = time.time(), answer.json()["status"]
        if record.cancel_answer not in ("cancelling", *FINAL):
            self._violation(f"{record.job_id}: cancel answered with a job that is {record.cancel_answer}")
        self._see(record, answer.json())

    def _disturb(self, record: Record) -> None:
        """Retry some of what failed, fork some of what can be, delete some of what ended."""
        if record.final is None or record.deleted or record.delete_doubt or record.retry_doubts:
            return
        if not self.clients.submitting.is_set():
            return
        if record.final["status"] in ("failed", "cancelled", "expired") and not record.retries:
            if self.clients.abilities.retry and self.random.random() < RETRIED:
                self._retry(record)
        elif record.keeps_payloads and record.status == "completed" and self.random.random() < FORKED:
            self._fork(record)
        elif self.clients.abilities.delete and self.random.random() < DELETED:
            self._delete(record)

    def _retry(self, record: Record) -> None:
        answer = self._ask("POST", f"/v1/jobs/{record.job_id}/retry", record)
        if answer is not None and answer.status_code in (409, 429):
            return
        if answer is None or answer.status_code == 503:
            record.retry_doubts += 1
        elif answer.is_success:
            record.retries += 1
        else:
            self._violation(f"{record.job_id}: retry answered {answer.status_code} {answer.text[:300]}")
            return
        # Without an answer it may have been carried out, or may still be.
        record.final, record.status = None, "queued"
        record.cancel_after_s = record.cancel_answer = None
        self.open[record.key] = record

    def _delete(self, record: Record) -> None:
        answer = self._ask("DELETE", f"/v1/jobs/{record.job_id}", record)
        if answer is None or answer.status_code == 503:
            record.delete_doubt = True
        elif answer.is_success:
            record.deleted = True
        else:
            self._violation(f"{record.job_id}: delete answered {answer.status_code} {answer.text[:300]}")

    # -- shared --------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, record: Record, **options: Any) -> httpx2.Response | None:
        """From either server; None: no answer. An answer that explains nothing is a violation."""
        number = self.random.randrange(len(self._http))
        answer: httpx2.Response | None = None
        headers = {TENANT_HEADER: record.tenant} | options.pop("headers", {})
        try:
            answer = self._http[number].request(method, path, headers=headers, **options)
        except httpx2.HTTPError as error:
            about = type(error).__name__
        else:
            about = str(answer.status_code)
        self.clients.answers[answer.status_code if answer is not None else 0] += 1
        job = record.job_id
        if method != "GET":
            if job is None and answer is not None and answer.is_success:
                job = answer.json()["id"]
            self.clients.log.write(
                client=self.number, op=f"{method} {path}", key=record.key, job=job, server=number, answer=about
            )
        if answer is not None and answer.status_code >= 500 and answer.status_code != 503:
            self._violation(f"{method} {path} ({record.key}): answered {answer.status_code} {answer.text[:300]}")
            return None
        return answer

    def _violation(self, sentence: str) -> None:
        self.clients.log.write(client=self.number, op="violation", what=sentence)
        self.clients.violation(sentence)


def _is_draining(answer: httpx2.Response) -> bool:
    """Whether a submit was refused because its version takes no new jobs, so that the client comes again later."""
    return answer.status_code == 409 and answer.json()["error"]["code"] == "version_draining"


def _lacks_file(answer: httpx2.Response) -> bool:
    """Whether a fork was refused by a server that has not been started again since the version of its origin is there.

    Its answer tells of another file.
    """
    return answer.status_code == 409 and "has another file of pipeline" in answer.json()["error"]["message"]
