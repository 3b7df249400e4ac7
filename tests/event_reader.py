"""``CutReader``: a client of a job's stream of events whose connections break."""

import json
from collections.abc import Callable, Sequence
from random import Random

import httpx2

LATE_S = 60.0
ENDS = ("completed", "failed", "cancelled", "expired")


class CutReader:
    """A client that loses its connection again and again, and goes on where it was, as docs/api.md says."""

    def __init__(self, urls: Sequence[str], job_id: str, stage: str, cuts: Random) -> None:
        """Follow a stage of a job at the servers of these URLs, in turn."""
        self.urls = urls
        self.job_id = job_id
        self.stage = stage
        self.cuts = cuts
        self.times_cut = 0
        self.text, self.attempt, self.last_id = "", 0, 0
        self.on_text: Callable[[], None] | None = None  # called once, after the first text

    def read(self, most_bytes: int = 3000) -> str:
        """The whole text, once the job has completed. Each connection gives so many bytes at most."""
        while not self.follow(self.urls[self.times_cut % len(self.urls)], self.cuts.randint(1, most_bytes)):
            self.times_cut += 1
            assert self.times_cut < 20_000, "it never ends"
        return self.text

    def follow(self, server: str, most_bytes: int) -> bool:
        """Read so many bytes, and return whether the job's end was among them."""
        query = f"?text_from={self.stage}:{self.attempt}:{len(self.text)}&starting_after={self.last_id}"
        url = f"{server}/v1/jobs/{self.job_id}/events{query}"
        received = b""
        with httpx2.stream("GET", url, headers={"Accept": "text/event-stream"}, timeout=LATE_S) as answer:
            for part in answer.iter_raw():
                received += part[: most_bytes - len(received)]
                if len(received) >= most_bytes:
                    break
        for block in received.decode("utf-8", "ignore").split("\n\n")[:-1]:
            lines = dict(line.partition(": ")[::2] for line in block.split("\n"))
            if "event" not in lines:
                continue
            data = json.loads(lines["data"])
            self.last_id = int(lines.get("id", self.last_id))
            if lines["event"] == "text" and data["stage"] == self.stage:
                if data["attempt"] != self.attempt:
                    self.text, self.attempt = "", data["attempt"]
                assert data["offset"] == len(self.text), "a gap, or a double"
                self.text += data["text"]
                if self.on_text is not None:
                    self.on_text()
                    self.on_text = None
            if lines["event"].removeprefix("job.") in ENDS:
                assert lines["event"] == "job.completed", data
                return True
        return False
