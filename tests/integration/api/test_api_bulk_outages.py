"""Bulks during which the database or the object store goes away, or the server is killed, and which are sent again."""

import json
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from omni_jobs.client import Client
from omni_jobs.database.database import Database
from omni_jobs.errors import DatabaseUnavailable
from omni_jobs.settings import Settings
from tests.integration.api_process import ApiProcess
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.integration.numbered_bulk import (
    BULK,
    GROUP,
    KEY,
    LINES,
    PATIENCE_S,
    N,
    broken_by,
    check_the_rest_is_made,
    check_truth,
    jobs_by_line,
    on,
    parsed,
    read_some,
    send,
    slow_reader,
    until,
    url_of,
    without_chunks,
)
from tests.oracles import samples
from tests.services.fault_proxy import Fault, FaultProxy
from tests.services.mortal_database import MortalDatabase, MortalPostgres
from tests.services.seaweedfs import SeaweedFS


@pytest.fixture
def settings(valkey_url: str, tmp_path: Path) -> Settings:
    return server_settings(tmp_path / "data", valkey_url)


@contextmanager
def serve_impatiently(settings: Settings) -> Iterator[ApiServer]:
    """A server that gives its database up after 2 s, so that the tests do not take long."""
    with serve(settings, gives_up_after_s=2.0) as api:
        yield api


# The database goes away


def test_a_database_that_stays_away_ends_the_bulk_and_the_answers_are_kept(
    settings: Settings, mortal_database: MortalDatabase
) -> None:
    with serve_impatiently(on(settings, mortal_database.url)) as api:
        answer = send(url_of(api), broken_by(mortal_database.database, mortal_database.take_away))
        mortal_database.bring_back()
        assert answer.status_code == 200, answer.text
        answers, last = parsed(answer.content)
        jobs = jobs_by_line(mortal_database.database)
        check_truth(answers, jobs)
        assert last is not None
        assert (last["error"]["code"], last["error"]["retryable"]) == ("database_unavailable", True)
        assert f"no line after line {len(answers)} was submitted" in last["error"]["message"]
        assert GROUP <= last["accepted"] < len(answers) == last["lines"] < N
        assert max(jobs) <= len(answers)
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert {(error["code"], error["retryable"]) for error in refused} == {("database_unavailable", True)}
        assert last["refused"] == len(refused) <= GROUP, "it asked again and again"
        check_the_rest_is_made(url_of(api), mortal_database.database, jobs)


def test_the_client_says_how_far_a_bulk_came(
    settings: Settings, mortal_database: MortalDatabase, tmp_path: Path
) -> None:
    with serve_impatiently(on(settings, mortal_database.url)) as api, Client(url_of(api)) as client:
        answers = []
        lines = (
            each + b"\n"
            for chunk in broken_by(mortal_database.database, mortal_database.take_away)
            for each in chunk.splitlines()
        )
        with pytest.raises(DatabaseUnavailable, match="no line after line"):  # noqa: PT012 - after the answers
            for answer in client.submit_bulk(lines, idempotency_key=KEY):
                answers.append(answer)
        mortal_database.bring_back()
        jobs = jobs_by_line(mortal_database.database)
        assert answers
        for answer in answers:
            assert answer.id == (None if answer.error is not None else jobs[answer.line])
        check_the_rest_is_made(url_of(api), mortal_database.database, jobs)


def test_a_bulk_of_which_nothing_was_accepted_is_a_503(settings: Settings, mortal_database: MortalDatabase) -> None:
    with serve_impatiently(on(settings, mortal_database.url)) as api:
        mortal_database.take_away()
        answer = send(url_of(api), BULK)
        mortal_database.bring_back()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
        assert answer.headers["retry-after"]
        check_the_rest_is_made(url_of(api), mortal_database.database, jobs_by_line(mortal_database.database))


def test_a_bulk_outlasts_a_restart_of_its_database(
    settings: Settings, mortal_postgres: MortalPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    url = mortal_postgres.new_database()
    database = Database(url)

    def start_again() -> None:
        until(lambda: "trying again" in caplog.text)  # the bulk has met the fault
        mortal_postgres.start()

    starter = threading.Thread(target=start_again)

    def restart() -> None:
        caplog.clear()
        mortal_postgres.kill()
        starter.start()

    with caplog.at_level(logging.WARNING), serve(on(settings, url)) as api:
        api.services.db._retry_for_s = PATIENCE_S  # a busy host starts a server slowly
        try:
            answer = send(url_of(api), broken_by(database, restart))
        finally:
            starter.join()
        answers, last = parsed(answer.content)
        assert last == {"lines": N, "accepted": N, "refused": 0}
        jobs = jobs_by_line(database)
        check_truth(answers, jobs)
        assert all(answer["created"] for answer in answers)
        check_the_rest_is_made(url_of(api), database, jobs)
    database.close()


# The object store goes away


def test_an_object_store_that_stays_away_ends_the_bulk_with_the_lines_it_concerns(
    settings: Settings, sqlite_url: str, seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    configs = tmp_path / "stage_configs"
    shutil.copytree(settings.resolved_stage_configs, configs)
    echo = (configs / "echo.yaml").read_text(encoding="utf-8")
    (configs / "echo.yaml").write_text(echo.replace("accepts: [text]", "accepts: [text, audio]"), encoding="utf-8")
    body = {"model": "echo", "messages": [{"role": "user", "content": [samples.audio_part(samples.wav(seconds=0.2))]}]}
    sounds = {number: json.dumps({**body, "seed": number}).encode() + b"\n" for number in (5, 400, 410)}
    lines = [sounds.get(number, LINES[number - 1]) for number in range(1, 701)]

    with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy, closing(Database(sqlite_url)) as database:

        def content() -> Iterator[bytes]:
            yield b"".join(lines[:300])
            until(lambda: jobs_by_line(database))
            proxy.set(Fault(refuse=True))
            yield b"".join(lines[300:])

        on_s3 = {"storage_url": f"s3://{seaweedfs.bucket}/{uuid4().hex}", "s3_endpoint_url": proxy.url}
        with serve(on(settings, sqlite_url, stage_configs=configs, **on_s3)) as api:
            answer = send(url_of(api), content())
            assert answer.status_code == 200, answer.text
            answers, last = parsed(answer.content)
            jobs = jobs_by_line(database)
            check_truth(answers, jobs)
            assert last is not None
            assert (last["error"]["code"], last["error"]["retryable"]) == ("storage_unavailable", True)
            assert [each["line"] for each in answers if "error" in each] == [400, 410]
            assert len(answers) == len(jobs) + 2 == 2 * GROUP
            proxy.clear()
            again, last = parsed(send(url_of(api), b"".join(lines)).content)
            jobs_then = jobs_by_line(database)
            check_truth(again, jobs_then)
            assert last == {"lines": 700, "accepted": 700, "refused": 0}
            assert [each["created"] for each in again] == [number not in jobs for number in range(1, 701)]
            assert len(jobs_then) == 700


# The server is killed


@pytest.fixture
def process(settings: Settings, database_url: str) -> Iterator[ApiProcess]:
    with closing(ApiProcess(settings, database_url)) as process:
        process.start()
        yield process


def test_a_server_that_is_killed_while_it_reads(process: ApiProcess, database: Database) -> None:
    with pytest.raises(httpx2.TransportError):
        send(process.url, broken_by(database, process.kill))
    jobs = jobs_by_line(database)
    assert 0 < len(jobs) < N
    process.start()
    check_the_rest_is_made(process.url, database, jobs)


def test_a_server_that_is_killed_while_it_answers(process: ApiProcess, database: Database) -> None:
    with closing(slow_reader(process.url)) as connection:
        received = read_some(connection)
        process.kill()
        with suppress(ConnectionResetError):
            while piece := connection.recv(1 << 16):
                received += piece
    head, _, rest = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    answers, last = parsed(without_chunks(rest))
    jobs = jobs_by_line(database)
    check_truth(answers, jobs)
    assert 0 < len(answers) < N
    assert last is None
    process.start()
    check_the_rest_is_made(process.url, database, jobs)


# The client sends again by itself


class LinesOfTries:
    """The lines of a bulk, which break off by ``fault`` the first time. The next time comes after ``mend``."""

    def __init__(self, database: Database, fault: Callable[[], object], mend: Callable[[], object]) -> None:
        self.times, self._database, self._fault, self._mend = 0, database, fault, mend

    def __iter__(self) -> Iterator[bytes]:
        self.times += 1
        if self.times == 1:
            for chunk in broken_by(self._database, self._fault):
                yield from (each + b"\n" for each in chunk.splitlines())
            return
        if self.times == 2:
            self._mend()
        yield from LINES


def check_one_answer_a_line(url: str, lines: LinesOfTries, database: Database) -> None:
    with Client(url) as client:
        answers = list(client.submit_bulk(lines))
    jobs = jobs_by_line(database)
    assert (lines.times, len(jobs)) == (2, N)
    assert [(answer.line, answer.id, answer.error) for answer in answers] == [
        (number, jobs[number], None) for number in range(1, N + 1)
    ]


def test_the_client_outlasts_an_outage_of_the_database(settings: Settings, mortal_database: MortalDatabase) -> None:
    lines = LinesOfTries(mortal_database.database, mortal_database.take_away, mortal_database.bring_back)
    with serve_impatiently(on(settings, mortal_database.url)) as api:
        check_one_answer_a_line(url_of(api), lines, mortal_database.database)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_client_outlasts_the_end_of_its_server(process: ApiProcess, database: Database, how: str) -> None:
    """A server that is stopped, for an upgrade say, waits some seconds for the bulk and then refuses the rest."""
    end = process.kill if how == "kill" else process.stop
    check_one_answer_a_line(process.url, LinesOfTries(database, end, process.start), database)


@pytest.mark.parametrize("words", ["submit-bulk jobs.jsonl", "submit-bulk - < jobs.jsonl"])
def test_the_command_sends_a_file_again(
    settings: Settings, mortal_database: MortalDatabase, tmp_path: Path, caplog: pytest.LogCaptureFixture, words: str
) -> None:
    (tmp_path / "jobs.jsonl").write_bytes(BULK)
    with serve_impatiently(on(settings, mortal_database.url)) as api:
        mortal_database.take_away()
        shell = f"exec {sys.executable} -m omni_jobs.cli {words} --idempotency-key {KEY} --url {url_of(api)}"
        with subprocess.Popen(
            ["bash", "-c", shell], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as command:
            until(lambda: "POST /v1/jobs/bulk: the database does not answer" in caplog.text)
            mortal_database.bring_back()
            output, errors = command.communicate(timeout=PATIENCE_S)
        assert (command.returncode, errors.decode()) == (0, f"{N} accepted, 0 refused\n")
        jobs = jobs_by_line(mortal_database.database)
        check_truth([json.loads(answer) for answer in output.splitlines()], jobs)
        assert len(output.splitlines()) == len(jobs) == N
