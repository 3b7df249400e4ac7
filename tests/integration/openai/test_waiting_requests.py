"""What requests hold of the server while they wait for jobs that nobody runs."""

from contextlib import ExitStack

import openai

from omni_jobs.settings import Settings
from tests.integration.api_server import serve
from tests.integration.openai.stock import stock_client

MIB = 1 << 20


def test_a_waiting_request_holds_neither_its_body_nor_more_than_its_place(sqlite_settings: Settings) -> None:
    limits = {"max_body_bytes": MIB, "max_held_body_bytes": 5 * MIB, "max_waits": 7}
    settings = sqlite_settings.model_copy(update=limits)
    with serve(settings) as api, stock_client(f"http://{api.host}:{api.port}") as stock, ExitStack() as open_streams:
        once = stock.client.with_options(max_retries=0)
        for _ in range(7):
            stream = open_streams.enter_context(stock.chat("word " * 200_000, model="echo", stream=True))
            assert next(stream).choices[0].delta.role == "assistant"
        messages = [{"role": "user", "content": "Hello"}]
        error = stock.error(
            openai.InternalServerError,
            lambda: once.chat.completions.create(model="echo", messages=messages),  # type: ignore[call-overload]
        )
        assert (error.status_code, error.code) == (503, "server_busy")
        assert len(api.http.get("/v1/jobs?brief=true").json()["jobs"]) == 7
