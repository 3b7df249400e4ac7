"""Both clients follow a job's stream of events, also over connections that break."""

import threading
from typing import cast

import pytest

from omni_jobs.client import Client, JobEvent
from omni_jobs.errors import NotFound, ServerUnavailable
from omni_jobs.settings import Settings
from tests.both_clients import KINDS, Kind, of_kind
from tests.integration.api_server import ApiServer
from tests.integration.hand_worker import HandWorker
from tests.services.fault_proxy import Fault, FaultProxy

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
WORDS = [f"Wort {number}, 漢字 😀. " for number in range(30)]
LATE_S = 60.0


@pytest.fixture(params=KINDS)
def which(request: pytest.FixtureRequest) -> Kind:
    return cast(Kind, request.param)


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def write(api: ApiServer, job_id: str, heard: threading.Event) -> None:
    """Run both stages of the job. The second loses its first attempt, and writes other words then.

    It writes the next word once the last was ``heard``.
    """
    worker = HandWorker(api, job_id)
    worker.complete(worker.claim("first"))
    lost = worker.claim("second")
    worker.write(lost, 0, "Something else")
    assert heard.wait(LATE_S)
    worker.lose(lost)
    claim, chars = worker.claim("second"), 0
    for number, word in enumerate(WORDS):
        heard.clear()
        worker.write(claim, chars, word, done=number)
        chars += len(word)
        assert heard.wait(LATE_S)
    worker.complete(claim, result={"text": "".join(WORDS)}, artifacts=[worker.artifact(claim)])


def text_of(events: list[JobEvent]) -> str:
    """The text of the last attempt, without a gap or a double."""
    text, attempt = "", 0
    for event in events:
        if event.name == "text":
            if event.data["attempt"] != attempt:
                text, attempt = "", event.data["attempt"]
            assert event.data["offset"] == len(text)
            text += event.data["text"]
    return text


def followed(api: ApiServer, client: Client, job_id: str) -> list[JobEvent]:
    events: list[JobEvent] = []
    heard = threading.Event()
    worker = threading.Thread(target=write, args=(api, job_id, heard))
    for event in client.stream(job_id):
        if not events:
            worker.start()
        events.append(event)
        if event.name == "text":
            heard.set()
    worker.join(LATE_S)
    return events


def test_a_stream_tells_all_until_the_end(api: ApiServer, which: Kind) -> None:
    with of_kind(which, f"http://{api.host}:{api.port}") as client:
        events = followed(api, client, client.submit(ECHO).id)
    assert text_of(events) == "".join(WORDS)
    assert [event.name for event in events[:1] + events[-2:]] == ["job", "artifact", "job.completed"]
    assert events[-1].is_end
    assert events[-1].id is not None


def test_a_stream_goes_on_where_a_connection_breaks(api: ApiServer, which: Kind) -> None:
    url = f"http://{api.host}:{api.port}"
    with FaultProxy(url, http=True) as proxy, of_kind(which, proxy.url) as client:
        job_id = client.submit(ECHO).id
        proxy.set(Fault(cut_answer_after=5_000, times=12))
        events = followed(api, client, job_id)
        assert proxy.struck > 1
    assert text_of(events) == "".join(WORDS)
    assert [event.name for event in events].count("job") == 1


def test_a_stream_of_no_job_and_of_no_server(api: ApiServer, which: Kind) -> None:
    url = f"http://{api.host}:{api.port}"
    with of_kind(which, url) as client, pytest.raises(NotFound):
        list(client.stream(f"job-{'0' * 32}"))
    with FaultProxy(url, http=True) as proxy, of_kind(which, proxy.url) as client:
        job_id = client.submit(ECHO).id
        proxy.set(Fault(refuse=True))
        with pytest.raises(ServerUnavailable):
            list(client.stream(job_id))
