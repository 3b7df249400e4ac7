"""The single submit and the bulk: both take and refuse the same, and no submit waits for another's."""

import json
import math
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from omni_jobs.client import Client
from omni_jobs.database.database import Database
from omni_jobs.errors import ConfigError, DatabaseUnavailable, RequestTooLarge
from omni_jobs.jobs import Jobs
from omni_jobs.prompts import renderers
from omni_jobs.settings import Settings
from tests import hostile
from tests.integration.api_server import BEHIND_A_PROXY, ApiServer, serve, server_settings
from tests.oracles import samples
from tests.unit.requests.test_requests import HELLO, REFUSED, says

ECHO = {"model": "echo", "messages": HELLO}
JSONL = {"Content-Type": "application/jsonl"}
LONG = {"messages": [{"role": "user", "content": "x" * 20_000}]}
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def settings(valkey_server: str, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Settings:
    models = {"qwen2_5_omni": tiny_checkpoint}
    more = {"models": models, "max_media_parts": 3, **BEHIND_A_PROXY}
    found = server_settings(tmp_path_factory.mktemp("api"), valkey_server, **more)
    database = Database(found.resolved_database_url)
    database.migrate()
    database.close()
    return found


@pytest.fixture(scope="module")
def api(settings: Settings) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


def single(api: ApiServer, body: bytes, **headers: str) -> dict[str, Any]:
    answer = api.http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json", **named(headers)})
    found: dict[str, Any] = answer.json()
    assert ("error" in found and found["error"] is not None) == (answer.status_code >= 400)
    return found


def bulk(api: ApiServer, *lines: bytes, **headers: str) -> list[dict[str, Any]]:
    """The answers; the last one too."""
    answer = api.http.post("/v1/jobs/bulk", content=b"\n".join(lines), headers={**JSONL, **named(headers)})
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


# The same refusals


def same(body: dict[str, Any]) -> bytes:
    return json.dumps({"model": "qwen2_5_omni", "messages": HELLO, **body}).encode()


def nested(name: str, depth: int) -> Any:
    found: Any = "\0"
    for _ in range(depth):
        found = {name: found}
    return found


BODIES: dict[str, bytes] = {
    **{name: same(body) for name, (body, _, _) in REFUSED.items()},
    "no JSON": b"{",
    "an array": b"[]",
    "no UTF-8": b"\xff",
    "a key twice": b'{"model": "echo", "model": "echo"}',
    "unknown pipeline": same({"model": "smell"}),
    "a deadline that is over": same({"expires_at": 1.0}),
    "a deadline that is over, in words": same({"expires_at": "2020-01-05T09:30:00Z"}),
    "a deadline in ten years": same({"expires_at": time.time() + 10 * 365 * 86_400}),
    "a deadline in 31 days": same({"expires_at": time.time() + 31 * 86_400}),
    "a damaged picture": same({"messages": says(samples.image_part(samples.image()[:60]))}),
    "too many media": same({"messages": says(*[samples.image_part(samples.image())] * 4)}),
    "too much text": same({"messages": [{"role": "user", "content": "x" * (9 << 20)}]}),
    "too many messages": same({"messages": HELLO * 300}),
    "a field of many long names": json.dumps(nested("k" * 64, 20)).encode(),
    "too many tokens": same({"messages": [{"role": "user", "content": "x " * 200_000}]}),
}


@pytest.mark.parametrize("name", BODIES)
def test_both_refuse_a_body_with_the_same_error(api: ApiServer, name: str) -> None:
    answer, last = bulk(api, BODIES[name])
    assert "error" in answer, answer
    assert answer["error"] == single(api, BODIES[name])["error"]
    assert last == {"lines": 1, "accepted": 0, "refused": 1}


@pytest.mark.parametrize("name", hostile.BODIES)
def test_both_refuse_a_hostile_body_with_the_same_error(api: ApiServer, name: str) -> None:
    body = hostile.BODIES[name]()
    answer, _ = bulk(api, body)
    assert answer["error"] == single(api, body)["error"]


@pytest.mark.parametrize("name", hostile.MEDIA)
def test_both_take_or_refuse_hostile_media(api: ApiServer, name: str) -> None:
    body = hostile.MEDIA[name]()
    answer, _ = bulk(api, body)
    one = single(api, body)
    assert ("error" in answer, "id" in answer) == (one.get("error") is not None, "id" in one)
    assert answer.get("error") == one.get("error")


def test_what_the_database_refuses_of_one_job_fails_no_other(api: ApiServer, settings: Settings) -> None:
    lines = [json.dumps({**ECHO, "seed": seed}).encode() for seed in (12, 13, 14)]
    with closing(sqlite3.connect(settings.data_dir / "omni-jobs.sqlite", isolation_level=None)) as connection:
        connection.execute(
            "CREATE TRIGGER refuses_13 BEFORE INSERT ON jobs WHEN new.seed = 13 BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        try:
            first, refused, third, last = bulk(api, *lines)
            assert first["created"]
            assert third["created"]
            assert refused["error"]["code"] == "internal"
            assert (last["accepted"], last["refused"]) == (2, 1)
            # On a connection of its own: the server closes it after a bug.
            with httpx2.Client(base_url=api.http.base_url, trust_env=False, timeout=LIMIT_S) as http:
                assert single(replace(api, http=http), lines[1])["error"] == refused["error"]
        finally:
            connection.execute("DROP TRIGGER refuses_13")


def test_both_take_the_same_and_make_the_same_job(api: ApiServer) -> None:
    ends = time.time() + 1000
    for body in ({}, {"expires_at": ends}, {"metadata": {"a": "b"}, "seed": 7}, LONG):
        line = json.dumps({**ECHO, "seed": 1, **body}).encode()
        [answer, _], one = bulk(api, line), single(api, line)
        job = api.http.get(f"/v1/jobs/{answer['id']}").json()
        varying = ("id", "created_at", "stages", "waiting")
        assert {k: v for k, v in job.items() if k not in varying} == {k: v for k, v in one.items() if k not in varying}


def test_cancel_after_is_of_every_line(api: ApiServer) -> None:
    line = json.dumps(ECHO).encode()
    before = time.time()
    *answers, _ = bulk(api, line, line, Cancel_After="15m")
    one = single(api, line, Cancel_After="15m")
    for job in (one, *(api.http.get(f"/v1/jobs/{answer['id']}").json() for answer in answers)):
        expires_at = datetime.fromisoformat(job["expires_at"]).timestamp()
        assert before + 895 < expires_at < time.time() + 905
    both = json.dumps({**ECHO, "expires_at": time.time() + 100}).encode()
    answer, _ = bulk(api, both, Cancel_After="15m")
    assert answer["error"]["field"] == "expires_at"
    assert answer["error"] == single(api, both, Cancel_After="15m")["error"]
    refused = api.http.post("/v1/jobs/bulk", content=line, headers={**JSONL, "Cancel-After": "soon"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "Cancel-After")
    with Client(f"http://{api.host}:{api.port}") as client:
        [made] = client.submit_bulk([line], cancel_after=900)
        assert client.get(made.id or "").expires_at is not None


def test_a_line_sent_again_after_its_deadline_gives_its_job(api: ApiServer) -> None:
    line = json.dumps({**ECHO, "expires_at": time.time() + 2}).encode()
    answer, _ = bulk(api, line, Idempotency_Key="late")
    one = single(api, line, Idempotency_Key="late")
    time.sleep(2.1)  # of the clock: the deadline passes
    again, _ = bulk(api, line, Idempotency_Key="late")
    assert (again["id"], again["created"]) == (answer["id"], False)
    assert single(api, line, Idempotency_Key="late")["id"] == one["id"]
    new, _ = bulk(api, line, Idempotency_Key="later")
    assert new["error"]["field"] == "expires_at"


# Room for answers


def test_a_bulk_ends_where_its_answers_are_too_many(settings: Settings) -> None:
    lines = [json.dumps({**ECHO, "seed": number}).encode() for number in range(600)]
    with serve(settings.model_copy(update={"max_bulk_answer_bytes": 4096})) as api:
        *answers, last = bulk(api, *lines)
        assert [answer["line"] for answer in answers] == list(range(1, 257))
        assert all(answer["created"] for answer in answers)
        assert (last["lines"], last["accepted"], last["refused"]) == (256, 256, 0)
        assert last["error"]["code"] == "request_too_large"
        assert "no line after line 256 was submitted" in last["error"]["message"]
        with Client(f"http://{api.host}:{api.port}") as client:
            found = []
            with pytest.raises(RequestTooLarge, match="after line 256"):  # noqa: PT012 — after the answers
                for answer in client.submit_bulk(lines):
                    found.append(answer)
            assert len(found) == 256


def test_no_bulk_begins_while_the_answers_of_all_have_no_room(settings: Settings, pool: ThreadPoolExecutor) -> None:
    """They count until the client has them, or has left."""
    line = json.dumps(ECHO).encode() + b"\n"
    goes_on = threading.Event()

    def lines() -> Iterator[bytes]:
        yield line * 300
        assert goes_on.wait(LIMIT_S)

    with serve(settings.model_copy(update={"max_bulk_answer_bytes": 1024})) as api, ExitStack() as stack:
        stack.callback(goes_on.set)
        reader = pool.submit(api.http.post, "/v1/jobs/bulk", content=lines(), headers=JSONL, timeout=LIMIT_S)
        answers = api.services.bulk_answers
        until(lambda: answers.bytes >= answers.limit)
        before = sum(api.services.jobs.backlog().values())
        refused = api.http.post("/v1/jobs/bulk", content=line, headers=JSONL)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_busy")
        assert refused.headers["retry-after"]
        assert sum(api.services.jobs.backlog().values()) == before
        assert single(api, line)["status"] == "queued"
        goes_on.set()
        assert reader.result(LIMIT_S).status_code == 200
        until(lambda: answers.bytes == 0)
        with pytest.raises(httpx2.WriteTimeout):  # this client leaves before its bulk's end
            api.http.post("/v1/jobs/bulk", content=broken_off(line * 300), headers=JSONL)
        until(lambda: answers.bytes == 0)
        assert bulk(api, line)[-1]["accepted"] == 1


def broken_off(lines: bytes) -> Iterator[bytes]:
    yield lines
    raise httpx2.WriteTimeout("left")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_bulk_that_has_ended_and_goes_on_is_answered(settings: Settings) -> None:
    """Its client writes for ever; the settings let a body of any length in, as long as it comes."""
    limits = {"max_bulk_answer_bytes": 4096, "max_body_bytes": 1024, "body_limit_s": 1.0}
    head = b"POST /v1/jobs/bulk HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/jsonl\r\n"
    line = json.dumps(ECHO).encode() + b"\n"
    ended = threading.Event()

    def write(connection: socket.socket) -> None:
        try:
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(line * 600))
            while not ended.wait(0.01):
                connection.sendall(chunk(b"\n" * 100))
        except OSError:
            pass  # the server has closed it

    with (
        serve(settings.model_copy(update=limits)) as api,
        closing(socket.create_connection((api.host, api.port), timeout=LIMIT_S / 2)) as connection,
    ):
        writer = threading.Thread(target=write, args=(connection,))
        writer.start()
        found = b""
        try:
            while b"no line after line 256 was submitted" not in found:
                piece = connection.recv(1 << 16)
                assert piece, found[-1000:]
                found += piece
        finally:
            ended.set()
            writer.join()
    assert found.startswith(b"HTTP/1.1 200")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small filesystem here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_said_wherever_it_is_met(
    api: ApiServer, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(answer: httpx2.Response) -> None:
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["code"] == "storage_full"
        assert answer.json()["error"]["retryable"] is True
        assert answer.headers["retry-after"]

    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    url = f"http://{api.host}:{api.port}/v1/jobs"
    for _ in range(2):  # each on a connection of its own: what is answered before it is read to its end is closed
        full(httpx2.post(f"{url}/bulk", content=b"x\n" * 40_000, headers=JSONL, timeout=LIMIT_S, trust_env=False))
        parts = {"request": ("request", json.dumps(ECHO)), "prompt_embeds": ("prompt_embeds", bytes(3 << 20))}
        full(httpx2.post(url, files=parts, timeout=LIMIT_S, trust_env=False))
    assert list(small_disk.iterdir()) == []
    assert single(api, json.dumps(ECHO).encode())["status"] == "queued"
    *_, last = bulk(api, *[json.dumps(ECHO).encode()] * 300)
    assert last["accepted"] == 300


# No submit waits for another's


class Gate:
    """Where threads wait until it is opened; how many came."""

    def __init__(self) -> None:
        self.came, self.opened = threading.Semaphore(0), threading.Event()
        self.number = 0

    def pass_through(self) -> None:
        self.number += 1
        self.came.release()
        assert self.opened.wait(LIMIT_S)

    def wait_for_one(self) -> None:
        assert self.came.acquire(timeout=LIMIT_S)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as found:
        yield found


@pytest.fixture
def gate() -> Iterator[Gate]:
    found = Gate()
    yield found
    found.opened.set()


def answered(api: ApiServer, headers: dict[str, str] | None = None) -> None:
    """What small and large submits, bulks and readers get meanwhile."""
    for body in (ECHO, {**ECHO, **LONG}):
        answer = api.http.post("/v1/jobs", json=body, headers=headers, timeout=LIMIT_S / 2)
        assert answer.status_code == 202, answer.text
    content = json.dumps(ECHO)
    answer = api.http.post("/v1/jobs/bulk", content=content, headers={**JSONL, **(headers or {})}, timeout=LIMIT_S / 2)
    assert json.loads(answer.text.splitlines()[-1])["accepted"] == 1
    assert api.http.get("/v1/jobs", timeout=LIMIT_S / 2).status_code == 200


def test_none_waits_for_a_tokenizer_that_is_loaded(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, gate: Gate
) -> None:
    load = renderers.load_renderer

    def slow(architecture: str, directory: Path) -> renderers.PromptRenderer:
        gate.pass_through()
        return load(architecture, directory)

    monkeypatch.setattr(renderers, "load_renderer", slow)
    body = {"model": "qwen2_5_omni", "messages": HELLO}
    kinds: list[dict[str, Any]] = [
        body,
        {**body, "messages": says(samples.image_part(samples.image()))},
        {**body, **LONG},
    ]
    with serve(settings) as api:
        waiting = [pool.submit(api.http.post, "/v1/jobs", json=kind, timeout=LIMIT_S) for kind in kinds * 6]
        waiting.append(pool.submit(api.http.post, "/v1/jobs/bulk", content=json.dumps(body), headers=JSONL))
        gate.wait_for_one()
        answered(api)
        assert not any(each.done() for each in waiting)
        assert gate.number == 1  # it is loaded once for all
        gate.opened.set()
        statuses = [each.result(LIMIT_S).status_code for each in waiting]
    assert set(statuses) <= {202, 200, 422, 503}  # the long text has too many tokens; few pictures may wait
    assert statuses.count(202) >= 6
    assert gate.number == 1


def test_a_load_that_fails_is_made_once_for_all_who_wait(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, gate: Gate
) -> None:
    def slow(architecture: str, directory: Path) -> renderers.PromptRenderer:
        gate.pass_through()
        raise ConfigError("no")

    monkeypatch.setattr(renderers, "load_renderer", slow)
    body = json.dumps({"model": "qwen2_5_omni", "messages": HELLO})
    with serve(settings) as api:
        kinds = [("/v1/jobs", {"Content-Type": "application/json"}), ("/v1/jobs/bulk", JSONL)] * 6
        waiting = [
            pool.submit(api.http.post, path, content=body, headers=headers, timeout=LIMIT_S) for path, headers in kinds
        ]
        gate.wait_for_one()
        until(lambda: len(api.connections) >= len(waiting))
        answered(api)  # comes after them
        gate.opened.set()
        for each in waiting:
            answer = each.result(LIMIT_S)
            assert json.loads(answer.text.splitlines()[0])["error"]["code"] == "model_missing"
    assert gate.number == 1


def test_no_bulk_waits_for_anothers_media(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, gate: Gate
) -> None:
    text = {"model": "qwen2_5_omni", "messages": HELLO}
    picture = {"model": "qwen2_5_omni", "messages": says(samples.image_part(samples.image()))}
    with serve(settings) as api:
        probe = api.services.wall.probe

        def slow(*arguments: Any, **options: Any) -> Any:
            gate.pass_through()
            return probe(*arguments, **options)

        monkeypatch.setattr(api.services.wall, "probe", slow)
        lines = "\n".join(json.dumps(body) for body in (text, picture, {**text, "model": "smell"}, text))
        waiting = pool.submit(api.http.post, "/v1/jobs/bulk", content=lines, headers=JSONL, timeout=LIMIT_S)
        gate.wait_for_one()
        answered(api)
        assert not waiting.done()
        gate.opened.set()
        *answers, last = [json.loads(line) for line in waiting.result(LIMIT_S).text.splitlines()]
    assert [answer["line"] for answer in answers] == [1, 2, 3, 4]
    assert ["id" in answer for answer in answers] == [True, True, False, True]
    assert (last["accepted"], last["refused"]) == (3, 1)


def test_none_waits_for_a_large_texts_tokens(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, gate: Gate
) -> None:
    """None that is small or has media. Large texts wait for one another, because two counted at once take as long
    together; one takes as long as a text that is barely too long for its model, since no longer one is tokenized.
    """
    with serve(settings) as api:
        body = {"model": "qwen2_5_omni", "messages": HELLO}
        assert api.http.post("/v1/jobs", json=body).status_code == 202  # the tokenizer is loaded
        kind = type(api.services.renderers.of(api.services.pipelines["qwen2_5_omni"]))
        count = kind.count_tokens

        def slow(renderer: Any, request: Any, media: Any) -> int:
            if len(request["messages"][0]["content"]) > 10_000:
                gate.pass_through()
            return int(count(renderer, request, media))

        monkeypatch.setattr(kind, "count_tokens", slow)
        large = {**body, **LONG}
        waiting = [pool.submit(api.http.post, "/v1/jobs", json=large, timeout=LIMIT_S) for _ in range(20)]
        gate.wait_for_one()
        for _ in range(5):
            assert api.http.post("/v1/jobs", json=body, timeout=LIMIT_S / 2).status_code == 202
        picture = {**body, "messages": says(samples.image_part(samples.image()))}
        assert api.http.post("/v1/jobs", json=picture, timeout=LIMIT_S / 2).status_code == 202
        gate.opened.set()
        assert {each.result(LIMIT_S).status_code for each in waiting} == {422}


def test_none_waits_for_a_full_queue(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, gate: Gate
) -> None:
    known_keys = Jobs.known_keys

    def slow(jobs: Jobs, keys: set[tuple[str, str]]) -> set[tuple[str, str]]:
        gate.pass_through()
        return known_keys(jobs, keys)

    with serve(settings.model_copy(update={"max_queued_jobs_per_tenant": 6})) as api:
        full = {"X-Tenant": "full"}
        while api.http.post("/v1/jobs", json=ECHO, headers=full).status_code == 202:
            pass
        monkeypatch.setattr(Jobs, "known_keys", slow)
        headers = {**full, "Idempotency-Key": "k"}
        waiting = [
            pool.submit(api.http.post, "/v1/jobs", json=ECHO, headers=headers, timeout=LIMIT_S) for _ in range(20)
        ]
        gate.wait_for_one()
        answered(api, {"X-Tenant": "other"})
        gate.opened.set()
        assert {each.result(LIMIT_S).status_code for each in waiting} == {429}


def test_none_waits_for_a_count_of_the_backlog(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, gate: Gate
) -> None:
    with serve(settings) as api:
        backlog = api.services.intake.backlog
        assert api.http.post("/v1/jobs", json=ECHO).status_code == 202
        count: Callable[[], Any] = backlog._count

        def slow() -> Any:
            gate.pass_through()
            return count()

        monkeypatch.setattr(backlog, "_count", slow)
        with ExitStack() as stack:
            stack.callback(gate.opened.set)
            deadline = time.monotonic() + LIMIT_S
            while gate.number == 0:  # until one is due
                assert time.monotonic() < deadline
                assert api.http.post("/v1/jobs", json=ECHO).status_code == 202
            answered(api)


def test_what_waits_for_a_count_shares_it_and_keeps_no_reader_waiting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    """More submits than there are threads for readers; the database does not answer."""
    number = 50
    with ThreadPoolExecutor(number) as pool, serve(settings) as api, ExitStack() as stack:
        stack.callback(gate.opened.set)
        backlog = api.services.intake.backlog
        assert api.http.post("/v1/jobs", json=ECHO).status_code == 202
        api.wait_for_count()
        counts = []
        count: Callable[[], Any] = backlog._count

        def slow() -> Any:
            counts.append(threading.get_ident())
            gate.pass_through()
            raise DatabaseUnavailable

        monkeypatch.setattr(backlog, "_count", slow)
        monkeypatch.setattr(backlog, "_counted_at", -math.inf)
        waiting = [pool.submit(api.http.post, "/v1/jobs", json=ECHO, timeout=LIMIT_S) for _ in range(number)]
        gate.wait_for_one()
        until(lambda: len(api.connections) >= number)
        assert api.http.get("/v1/jobs", timeout=LIMIT_S / 4).status_code == 200
        assert api.http.get("/readyz", timeout=LIMIT_S / 4).status_code == 200
        gate.opened.set()
        assert {each.result(LIMIT_S).status_code for each in waiting} == {503}
        assert len(counts) == 1
        monkeypatch.setattr(backlog, "_count", count)
        assert api.http.post("/v1/jobs", json=ECHO).status_code == 202


def test_a_line_that_is_too_late_takes_no_room_from_those_after_it(settings: Settings) -> None:
    with serve(settings.model_copy(update={"max_queued_jobs_per_tenant": 2})) as api:
        lines = [{**ECHO, "expires_at": 1}] * 3 + [ECHO] * 3
        content = "\n".join(json.dumps(line) for line in lines)
        answer = api.http.post("/v1/jobs/bulk", content=content, headers={**JSONL, "X-Tenant": "late"})
        *answers, _ = [json.loads(line) for line in answer.text.splitlines()]
    codes = [each["error"]["code"] if "error" in each else "made" for each in answers]
    assert codes == ["invalid_request"] * 3 + ["made"] * 2 + ["too_many_jobs"]
