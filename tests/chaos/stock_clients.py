"""Stock clients: OpenAI's own. They send no key, and repeat a request by themselves, each try at either API server.

What each asked for has a text of its own, by which the checker finds its jobs in SQL: one at most, whatever became of
the tries, and one that has completed where the client has its answer.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from omni_jobs.identity import DEFAULT_TENANT
from tests.chaos.pipeline_files import FILM, MEDIA
from tests.chaos.stack import TENANT_HEADER, WEIGHTS
from tests.response_reader import Reader

__all__ = ["Asked", "StockClients"]

TIMEOUT_S = 20.0  # of a try; the server answers a little earlier
TRIES = 5
PATIENCE_S = 150.0  # for what goes on in the background
TENANTS = (*WEIGHTS, DEFAULT_TENANT)
ENDED = ("completed", "failed", "cancelled", "incomplete")
ANSWERED, UNANSWERED = "answered", "no answer"
# The errors by which a client may be told that it has no answer. Why a job has failed, the checker asks of each.
NAMED = frozenset(
    {
        *("server_busy", "database_unavailable", "storage_unavailable", "storage_full", "broker_unavailable"),
        "version_draining",
        *("too_many_jobs", "too_many_running_jobs", "still_running", "text_changed", "object_missing"),
        *("object_corrupt", "payload_corrupt", "failed"),
    }
)


class _Told(Exception):
    """A stream, a response or a video says why it has failed."""

    def __init__(self, code: str | None, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Asked:
    """What a client asked for: its kind, its own text, for which tenant; and what became of it."""

    kind: str
    text: str
    tenant: str
    job_id: str | None = None  # as far as the client was told
    outcome: str = ""  # ANSWERED, UNANSWERED, or the code of an error; empty: not yet


@dataclass
class StockClients:
    """All of them. Clear ``submitting``, then wait until they are ``settled``, then ``stop``."""

    urls: list[str]
    seed: int
    count: int = 4
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.submitting = threading.Event()
        self.submitting.set()
        self.stopping = threading.Event()
        self.clients = [StockClient(number, self) for number in range(self.count)]

    def start(self) -> None:
        for client in self.clients:
            client.thread.start()

    @property
    def asked(self) -> list[Asked]:
        return [asked for client in self.clients for asked in list(client.asked)]

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(sorted(Counter(f"{asked.kind}: {asked.outcome or 'open'}" for asked in self.asked).items()))

    def settled(self) -> bool:
        """Nobody waits for an answer."""
        return all(asked.outcome for asked in self.asked)

    def stop(self) -> None:
        self.submitting.clear()
        self.stopping.set()
        for client in self.clients:
            if client.thread.ident is not None:
                client.thread.join()


class StockClient:
    """One client: its own thread and random numbers. It asks for one thing after the other."""

    def __init__(self, number: int, clients: StockClients) -> None:
        self.thread = threading.Thread(target=self._run, name=f"stock-{number}", daemon=True)
        self.number = number
        self.clients = clients
        self.asked: list[Asked] = []
        self.random = random.Random(f"{clients.seed}/stock/{number}")
        self._servers = [httpx2.URL(url) for url in clients.urls]
        self._http = openai.DefaultHttpxClient(trust_env=False, event_hooks={"request": [self._choose_server]})
        self.client = openai.OpenAI(
            base_url=f"{clients.urls[0]}/v1",
            api_key="none",
            timeout=TIMEOUT_S,
            max_retries=TRIES - 1,
            http_client=self._http,
        )

    def _choose_server(self, request: Any) -> None:
        """Send this try to any server."""
        server = self.random.choice(self._servers)
        request.url = request.url.copy_with(host=server.host, port=server.port)

    def _run(self) -> None:
        kinds: list[Callable[[Asked, openai.OpenAI], None]] = [
            *(self._chat, self._chat_stream, self._response, self._response_stream),
            *(self._background, self._background_stream, self._video),
        ]
        with self.client:
            while self.clients.submitting.is_set():
                ask = self.random.choice(kinds)
                name = f"{self.clients.seed}-{self.number}-{len(self.asked)}"
                text = f"stock {name} {self.random.random()} 漢字 😀 and so on"
                asked = Asked(ask.__name__.strip("_"), text, self.random.choice(TENANTS))
                self.asked.append(asked)
                asked.outcome = self._outcome(ask, asked)
                self.clients.stopping.wait(self.random.uniform(0, 1))

    def _outcome(self, ask: Callable[[Asked, openai.OpenAI], None], asked: Asked) -> str:
        client = self.client.with_options(default_headers={TENANT_HEADER: asked.tenant})
        try:
            ask(asked, client)
        except (openai.APIConnectionError, httpx2.TransportError):
            return UNANSWERED
        except openai.APIError as error:
            its = error.body if isinstance(error.body, dict) else {}
            asked.job_id = asked.job_id or its.get("job_id")
            return self._named(asked, error.code, str(error))
        except _Told as error:
            return self._named(asked, error.code, str(error))
        except AssertionError as wrong:
            self._violation(asked, f"wrong: {wrong}")
            return "wrong"
        except Exception as error:  # noqa: BLE001 — a client that breaks must not pass for a quiet one
            self._violation(asked, f"{type(error).__name__}: {error}")
            return "wrong"
        return ANSWERED

    def _named(self, asked: Asked, code: str | None, message: str) -> str:
        """The code of an error, which must be one that explains itself."""
        if code not in NAMED:
            self._violation(asked, f"{code}: {message[:300]}")
        return code or "none"

    def _violation(self, asked: Asked, sentence: str) -> None:
        self.clients.violations.append(f"{asked.kind} of {asked.job_id} ({asked.text}): {sentence}")

    # -- what they ask for ---------------------------------------------------------------------

    def _delays(self) -> dict[str, Any]:
        """A model that echoes, and how long it takes: the one in two stages, or the one whose text grows."""
        delay_s = self.random.choice((0, 0.3, self.random.uniform(0, 2)))
        if self.random.random() < 0.4:
            return {"model": "echo", "extra_body": {"stages": {"first": {"delay_s": delay_s}}}}
        return {"model": MEDIA, "extra_body": {"stages": {"reply": {"delay_s": delay_s}}}}

    def _chat(self, asked: Asked, client: openai.OpenAI) -> None:
        messages: Any = [{"role": "user", "content": asked.text}]
        completion = client.chat.completions.create(messages=messages, **self._delays())
        asked.job_id = completion.id.replace("chatcmpl-", "job-")
        assert completion.choices[0].message.content == asked.text, completion

    def _chat_stream(self, asked: Asked, client: openai.OpenAI) -> None:
        messages: Any = [{"role": "user", "content": asked.text}]
        told, reason = "", None
        with client.chat.completions.create(messages=messages, stream=True, **self._delays()) as stream:
            for chunk in stream:
                asked.job_id = chunk.id.replace("chatcmpl-", "job-")
                told += chunk.choices[0].delta.content or ""
                reason = chunk.choices[0].finish_reason or reason
                assert asked.text.startswith(told), told
        if reason is None:
            raise httpx2.RemoteProtocolError("the stream ended before its end")
        assert told == asked.text, told

    def _response(self, asked: Asked, client: openai.OpenAI) -> None:
        self._check_response(asked, client.responses.create(input=asked.text, **self._delays()))

    def _background(self, asked: Asked, client: openai.OpenAI) -> None:
        response = client.responses.create(input=asked.text, background=True, **self._delays())
        asked.job_id = response.id.replace("resp_", "job-")
        id = response.id
        self._check_response(asked, self._ended(lambda: client.responses.retrieve(id)))

    def _response_stream(self, asked: Asked, client: openai.OpenAI) -> None:
        self._read_stream(asked, client, background=False)

    def _background_stream(self, asked: Asked, client: openai.OpenAI) -> None:
        self._read_stream(asked, client, background=True)

    def _read_stream(self, asked: Asked, client: openai.OpenAI, *, background: bool) -> None:
        """Read a response's events, over as many connections as that takes."""
        stream = client.responses.create(input=asked.text, stream=True, background=background, **self._delays())
        first = next(stream, None)
        if first is None:
            raise httpx2.RemoteProtocolError("the stream ended before it began")
        assert first.type == "response.created", first
        reader = Reader(first.response.id)
        asked.job_id = first.response.id.replace("resp_", "job-")
        reader.take(first)
        self._take(reader, stream)
        until = time.monotonic() + PATIENCE_S

        def taken_up() -> Any:
            return client.responses.retrieve(reader.response_id, stream=True, starting_after=reader.last)

        while reader.response is None:
            assert time.monotonic() < until, "the stream never ends"
            self._pause()
            self._take(reader, self._again(taken_up, until))
        self._check_response(asked, reader.response)
        assert list(reader.texts.values())[-1] == asked.text, reader.texts

    @staticmethod
    def _take(reader: Reader, stream: Any) -> None:
        """Read events until the end, or until the connection breaks."""
        with suppress(openai.APIConnectionError, httpx2.TransportError), stream:
            for event in stream:
                if event.type == "error":
                    raise _Told(event.code, event.message)
                reader.take(event)

    def _video(self, asked: Asked, client: openai.OpenAI) -> None:
        film = {"seconds": 0.5, "width": 64, "height": 64, "steps": 4, "delay_s": self.random.uniform(0, 1.5)}
        video = client.videos.create(model=MEDIA, prompt=asked.text, extra_body={"stages": {FILM: film}})
        asked.job_id = video.id.replace("video_", "job-")
        id = video.id
        video = self._ended(lambda: client.videos.retrieve(id))
        if video.error is not None:
            raise _Told(video.error.code, video.error.message)
        assert video.status == "completed", video
        until = time.monotonic() + PATIENCE_S
        content = self._again(lambda: client.videos.download_content(id).read(), until)
        assert content[4:8] == b"ftyp", content[:16]

    # -- shared --------------------------------------------------------------------------------

    def _check_response(self, asked: Asked, response: Any) -> None:
        asked.job_id = response.id.replace("resp_", "job-")
        if response.error is not None:
            raise _Told("failed", response.error.message)
        assert (response.status, response.output_text) == ("completed", asked.text), response

    def _ended(self, retrieve: Callable[[], Any]) -> Any:
        """Ask until it has ended, and return it."""
        until = time.monotonic() + PATIENCE_S
        while (found := self._again(retrieve, until)).status not in ENDED:
            assert time.monotonic() < until, f"it is {found.status} for {PATIENCE_S:.0f} s"
            self._pause()
        return found

    def _again(self, read: Callable[[], Any], until: float) -> Any:
        """What a read gives, as soon as any server has an answer."""
        while True:
            try:
                return read()
            except (openai.APIConnectionError, httpx2.TransportError):
                if time.monotonic() > until:
                    raise
            except openai.InternalServerError as error:
                if error.code not in NAMED or time.monotonic() > until:
                    raise
            self._pause()

    def _pause(self) -> None:
        assert not self.clients.stopping.wait(self.random.uniform(0.1, 0.5)), "no answer by the end of the run"
