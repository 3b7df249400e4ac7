"""The stock client's requests, while the API's process ends in their middle, and another one is started.

The client tries again by itself. Each answer is right, and each request has made its jobs once.
"""

import io
import signal
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import numpy as np
import openai
import pytest
from PIL import Image

from omni_jobs.identity import PipelineId, StageId
from omni_jobs.states import JobState
from omni_jobs.views import JobView
from tests.integration.echo_stack import EchoStack
from tests.integration.openai.mortal_server import mortal_server
from tests.integration.openai.stock import Stock, stock_client
from tests.integration.openai.test_speech import duration_s, speak
from tests.integration.openai.test_transcriptions import SAID, transcribe
from tests.integration.openai.test_videos import SMALL, frames_of, said, strip_of
from tests.oracles import samples

LATE_S = 60.0
POLL_S = 0.3
TEXT = "A lighthouse stands by the sea"
ASKED: dict[str, Any] = {"model": "echo_media", "input": TEXT}
STAGES = ("answer", "sound", "picture", "video")


def strip_of_picture(png: str) -> bytes:
    with Image.open(io.BytesIO(b64decode(png))) as picture:
        return strip_of(np.asarray(picture.convert("RGB")))


def chat(stock: Stock) -> None:
    assert stock.chat(TEXT).choices[0].message.content == TEXT


def chat_with_a_key(stock: Stock) -> None:
    answer = stock.chat(TEXT, extra_headers={"Idempotency-Key": uuid4().hex})
    assert answer.choices[0].message.content == TEXT


def several_choices(stock: Stock) -> None:
    answer = stock.chat(TEXT, n=2)
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]


def spoken_answer(stock: Stock) -> None:
    sound = {"voice": "nova", "format": "wav"}
    answer = stock.chat(TEXT, modalities=["text", "audio"], audio=sound)
    assert duration_s(b64decode(answer.choices[0].message.audio.data)) == pytest.approx(len(TEXT) / 20, abs=0.01)


def speech(stock: Stock) -> None:
    spoken = speak(stock, TEXT, response_format="wav")
    assert duration_s(spoken.content) == pytest.approx(len(TEXT) / 20, abs=0.01)


def transcription(stock: Stock) -> None:
    assert transcribe(stock).text == SAID


def pictures(stock: Stock) -> None:
    drawn = stock.client.images.generate(model="echo_media", prompt=TEXT, size="320x192", n=2, extra_body={"seed": 5})
    assert [strip_of_picture(each.b64_json) for each in drawn.data or ()] == [said(5, TEXT), said(6, TEXT)]


def edit(stock: Stock) -> None:
    given = samples.image(320, 192)
    [made] = stock.client.images.edit(model="echo_media", image=given, prompt=TEXT, extra_body={"seed": 7}).data or ()
    assert strip_of_picture(made.b64_json) == said(7, TEXT)


def response(stock: Stock) -> None:
    assert stock.client.responses.create(**ASKED).output_text == TEXT


def response_in_the_background(stock: Stock) -> None:
    made = stock.client.responses.create(background=True, **ASKED)
    while made.status in ("queued", "in_progress"):
        time.sleep(POLL_S)
        made = stock.client.responses.retrieve(made.id)
    assert (made.status, made.output_text) == ("completed", TEXT)


def response_taken_up(stock: Stock) -> None:
    """The text of a stream that breaks off with the server, and of the stream that goes on where it was."""
    text, last, response_id = "", -1, ""
    stream = stock.client.responses.create(background=True, stream=True, **ASKED)
    is_broken = False
    try:
        for event in stream:
            response_id = response_id or event.response.id
            last = event.sequence_number
            text += event.delta if event.type == "response.output_text.delta" else ""
    except (httpx2.HTTPError, openai.APIError):
        is_broken = True
    assert is_broken or event.type == "error", "it looks as if the response had ended"
    for event in stock.client.responses.retrieve(response_id, stream=True, starting_after=last):
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert (text, event.type) == (TEXT, "response.completed")


def video(stock: Stock) -> None:
    made = stock.client.videos.create_and_poll(prompt=TEXT, extra_body={"seed": 3}, **SMALL)
    assert made.status == "completed"
    frames = frames_of(stock.client.videos.download_content(made.id).content)
    assert (len(frames), strip_of(frames[-1])) == (16, said(3, TEXT))


REQUESTS: dict[Callable[[Stock], None], int] = {
    chat: 1,
    chat_with_a_key: 1,
    several_choices: 2,
    spoken_answer: 2,
    speech: 1,
    transcription: 1,
    pictures: 2,
    edit: 1,
    response: 1,
    response_in_the_background: 1,
    response_taken_up: 1,
    video: 1,
}
"""What the client does, and how many stage runs it makes."""


@contextmanager
def paused(stack: EchoStack) -> Iterator[Callable[[], None]]:
    """Pause all stages until what it gives is called, or until the end. Its workers know when it begins."""

    def times() -> list[int]:
        return [worker.log.read_text().count(f"{worker.stage} is paused") for worker in stack.workers]

    def resume() -> None:
        for stage in STAGES:
            stack.jobs.resume(StageId(PipelineId("echo_media", ""), stage))
        stack.app.broker.ring([f"echo_media@1.{stage}" for stage in STAGES])

    before = times()
    for stage in STAGES:
        stack.jobs.pause(StageId(PipelineId("echo_media", ""), stage))
    try:
        stack.until(lambda: all(now > then for now, then in zip(times(), before, strict=True)) or None, LATE_S)
        yield resume
    finally:
        resume()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_each_answer_is_right_though_the_server_ends_in_the_middle(
    echo_stack: EchoStack, tmp_path: Path, end: signal.Signals
) -> None:
    jobs = echo_stack.jobs
    newest = max((job.id for job in jobs.list(limit=1).jobs), default="")

    def made() -> list[JobView]:
        return [job for job in jobs.list(limit=100, brief=True).jobs if job.id > newest]

    def all_wait() -> bool | None:
        """However slow the machine is, because no worker claims what a paused stage has."""
        return sum(len(job.stages) for job in made()) == sum(REQUESTS.values()) or None

    with (
        paused(echo_stack) as resume,
        mortal_server(echo_stack, tmp_path / "api.log") as server,
        stock_client(server.url) as stock,
        ThreadPoolExecutor(len(REQUESTS)) as pool,
    ):
        answers = [pool.submit(request, stock) for request in REQUESTS]
        echo_stack.until(all_wait, LATE_S)
        server.end(end)
        resume()  # the jobs run while there is no server
        server.start_again()
        for answer in answers:
            answer.result(LATE_S)
        assert (
            stock.tries.count("1") >= len(REQUESTS) - 3
        )  # cut off were all but a stream and, perhaps, those that poll
    ended = made()
    assert sum(len(job.stages) for job in ended) == sum(REQUESTS.values())
    assert {job.status for job in ended} == {JobState.COMPLETED}
