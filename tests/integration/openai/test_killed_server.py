"""The stock client's requests, while the API's process is killed and another one is started: kill -9, mid-answer.

The client tries again by itself. Each answer is right, and each request has made one job.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omni_jobs.states import JobState
from tests.integration.echo_stack import EchoStack
from tests.integration.openai.mortal_server import mortal_server
from tests.integration.openai.stock import Stock, stock_client
from tests.integration.openai.test_videos import SMALL, frames_of, said, strip_of

DELAY_S = 3.0  # of each job: the server is killed within it
LATE_S = 60.0
TEXT = "A lighthouse stands by the sea"


def slowly(stage: str) -> dict[str, Any]:
    return {"stages": {stage: {"delay_s": DELAY_S}}}


def chat(stock: Stock) -> None:
    assert stock.chat(TEXT, extra_body=slowly("answer")).choices[0].message.content == TEXT


def chat_with_a_key(stock: Stock) -> None:
    answer = stock.chat(TEXT, extra_body=slowly("answer"), extra_headers={"Idempotency-Key": "killed"})
    assert answer.choices[0].message.content == TEXT


def several_choices(stock: Stock) -> None:
    answer = stock.chat(TEXT, n=2, extra_body=slowly("answer"))
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]


def video(stock: Stock) -> None:
    made = stock.client.videos.create_and_poll(prompt=TEXT, extra_body={"seed": 3, **slowly("video")}, **SMALL)
    assert made.status == "completed"
    frames = frames_of(stock.client.videos.download_content(made.id).content)
    assert (len(frames), strip_of(frames[-1])) == (16, said(3, TEXT))


REQUESTS: dict[Callable[[Stock], None], int] = {chat: 1, chat_with_a_key: 1, several_choices: 2, video: 1}
"""What the client does, and how many jobs it makes."""


def test_each_answer_is_right_though_the_server_is_killed_in_the_middle(echo_stack: EchoStack, tmp_path: Path) -> None:
    jobs = echo_stack.jobs
    newest = [job.id for job in jobs.list(limit=1).jobs]

    def made() -> list[Any]:
        return [job for job in jobs.list(limit=100, brief=True).jobs if [job.id] > newest]

    def all_running() -> bool | None:
        running = [job for job in made() if job.status is JobState.IN_PROGRESS]
        return len(running) == sum(REQUESTS.values()) or None

    with (
        mortal_server(echo_stack, tmp_path / "api.log") as server,
        stock_client(server.url) as stock,
        ThreadPoolExecutor(len(REQUESTS)) as pool,
    ):
        answers = [pool.submit(request, stock) for request in REQUESTS]
        echo_stack.until(all_running, LATE_S)
        server.kill()
        server.start_again()
        for answer in answers:
            answer.result(LATE_S)
        assert "1" in stock.tries  # a request was cut off
    assert len(made()) == sum(REQUESTS.values())
