"""The server that is there already, before which the profile ``remote`` puts a queue: it says what it was asked.

It speaks as much of OpenAI's API as that profile needs, and asks for a key. Standard library alone.
"""

import json
import secrets
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TAKES_S = 1.5  # an answer, as in the jobs of the echo pipeline


class ChatServer:
    """May be started and stopped again and again, on one port. ``answers`` has how often it gave each status."""

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(16)
        self.answers: Counter[int] = Counter()
        self.dropped = 0  # requests that a stop has left without an answer
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return 0 if self._server is None else int(self._server.server_address[1])

    def start(self, address: str, port: int) -> None:
        """Listen. The threads that serve are in this thread's network."""
        self._server = _Server((address, port), self)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="chat server").start()

    def stop(self) -> None:
        """Be gone as a program that was killed: what is under way gets no answer."""
        if self._server is not None:
            self._server.gone.set()
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], owner: ChatServer) -> None:
        self.owner = owner
        self.gone = threading.Event()
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": []})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = asked["messages"][-1]["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        if self.server.gone.wait(TAKES_S):
            self.server.owner.dropped += 1
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        self._answer(200, {"object": "chat.completion", "choices": [choice]})

    def _answer(self, status: int, said: dict[str, Any]) -> None:
        if self.headers["Authorization"] != f"Bearer {self.server.owner.key}":
            status, said = 401, {"error": {"message": "wrong key", "type": "authentication_error"}}
        body = json.dumps(said).encode()
        self.server.owner.answers[status] += 1
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: the report says how often it answered."""
