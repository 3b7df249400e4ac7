"""``Stock``: a stock ``openai`` client of one server, and the requests that it has sent."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

LATE_S = 30.0


class Stock:
    """``client`` is to be closed. ``tries`` and ``read_timeouts`` are what its requests said of themselves."""

    def __init__(self, url: str) -> None:
        self.tries: list[str] = []
        self.read_timeouts: list[str] = []
        http = openai.DefaultHttpxClient(trust_env=False, event_hooks={"request": [self._count]})
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http)

    def _count(self, request: Any) -> None:
        self.tries.append(request.headers["x-stainless-retry-count"])
        self.read_timeouts.append(request.headers["x-stainless-read-timeout"])

    def chat(self, text: str = "Hello", model: str = "echo_media", **more: Any) -> Any:
        """A chat completion, or its stream."""
        return self.client.chat.completions.create(
            **{"model": model, "messages": [{"role": "user", "content": text}], **more}
        )

    def error(self, kind: type[openai.APIStatusError], call: Callable[[], Any]) -> openai.APIStatusError:
        """The error of a call that is refused, once: the client must not have tried again."""
        self.tries.clear()
        with pytest.raises(openai.APIStatusError) as caught:
            call()
        assert type(caught.value) is kind
        assert self.tries == ["0"]
        if (param := caught.value.param) not in (None, "body"):
            assert f" - {param}: " in str(caught.value), "str() shows nothing of an error but its message"
        return caught.value


@contextmanager
def stock_client(url: str) -> Iterator[Stock]:
    stock = Stock(url)
    with stock.client:
        yield stock


def until(is_so: Callable[[], object]) -> None:
    woken = threading.Event()
    for _ in range(int(LATE_S / 0.01)):
        if is_so():
            return
        woken.wait(0.01)
    raise AssertionError("it never is")
