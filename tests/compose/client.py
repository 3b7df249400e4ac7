"""The jobs of the trial: they are submitted by key, awaited, and each result looked at. Standard library alone."""

import json
import random
import ssl
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from uuid import uuid4

ENDED = {"completed", "failed", "cancelled", "expired"}
AGAIN = {429, 500, 502, 503, 504}
OUTAGE_S = 120.0  # an API that answers nothing for so long is away
JOBS_S = 240.0
CALL_S = 30.0
SENTENCE = "The keeper of the lighthouse lights the lamp every evening, and counts the ships that pass the harbour."
HEARD = ("lighthouse", "harbo")

Json = dict[str, Any]


class ClientError(Exception):
    """An answer that no retry mends."""


@dataclass
class Outcome:
    """What became of the jobs of one load."""

    submitted: int = 0
    completed: int = 0
    lost: int = 0  # not ended, or ended in another way
    doubled: int = 0  # jobs beyond those submitted, and jobs that ended twice
    wrong: int = 0  # completed with another result than asked
    repeated: int = 0  # attempts of stage runs beyond the first
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)  # calls that were repeated, by kind
    faults: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether nothing was lost, doubled or wrong."""
        return self.submitted > 0 and self.completed == self.submitted and not (self.lost or self.doubled or self.wrong)


class Client:
    """Calls the published API with one key."""

    def __init__(self, url: str, key: str, authority: Path | None = None) -> None:
        """``authority`` is the file of the one that has signed the server's certificate."""
        self.url, self.key = url, key
        self._trust = None if authority is None else ssl.create_default_context(cafile=authority)
        self.errors: Counter[str] = Counter()

    def raw(self, method: str, path: str, body: Json | None = None, **headers: str) -> bytes:
        """Return an answer's body. Tries again while the API is away or busy. Raises ClientError."""
        data = None if body is None else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        until = time.monotonic() + OUTAGE_S
        while True:
            request = urllib.request.Request(self.url + path, data, given, method=method)
            try:
                with urllib.request.urlopen(request, timeout=CALL_S, context=self._trust) as answer:
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                said = error.read()[:500].decode(errors="replace")
                if error.code not in AGAIN or time.monotonic() > until:
                    raise ClientError(f"{method} {path}: {error.code} {said}") from error
                self.errors[f"{error.code}"] += 1
            except (OSError, HTTPException) as error:
                if time.monotonic() > until:
                    raise ClientError(f"{method} {path}: {error}") from error
                self.errors[type(getattr(error, "reason", error)).__name__] += 1
            time.sleep(0.3)

    def headers(self, path: str) -> Mapping[str, str]:
        """Return the headers of an answer, by names in small letters."""
        with urllib.request.urlopen(self.url + path, timeout=CALL_S, context=self._trust) as answer:
            return {name.lower(): value for name, value in answer.headers.items()}

    def call(self, method: str, path: str, body: Json | None = None, **headers: str) -> Json:
        """Return an answer's JSON."""
        return dict(json.loads(self.raw(method, path, body, **headers)))

    def submit(self, body: Json) -> str:
        """Submit a job, once however often it is tried, and return its id."""
        return str(self.call("POST", "/v1/jobs", body, Idempotency_Key=uuid4().hex)["id"])

    def jobs(self, **filters: str) -> list[Json]:
        """Return all jobs that match."""
        found: list[Json] = []
        cursor: str | None = None
        while True:
            query = {"limit": "100", "brief": "true", **filters} | ({"cursor": cursor} if cursor else {})
            page = self.call("GET", f"/v1/jobs?{urllib.parse.urlencode(query)}")
            found += page["jobs"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    def workers(self, pipeline: str, stage: str) -> list[Json]:
        """Return the workers of a stage that serve."""
        workers = self.call("GET", "/v1/status")["workers"]
        return [one for one in workers if (one["pipeline"], one["stage"]) == (pipeline, stage)]


def echo(number: int, delay_s: float = 1.5, payload: int = 100_000) -> Json:
    """A job of both stages of the echo pipeline."""
    stages = {"first": {"delay_s": delay_s, "payload_bytes": payload}, "second": {"delay_s": delay_s}}
    return {"model": "echo", "messages": [{"role": "user", "content": f"job {number}"}], "stages": stages}


def asked(number: int) -> Json:
    """A job of the server that is there already, which says what it was asked."""
    return {"model": "remote", "messages": [{"role": "user", "content": f"question {number}"}]}


def speech(times: int = 1) -> Json:
    """A job that says the sentence, so often that its stages take a while."""
    said = {"role": "user", "content": " ".join(times * [SENTENCE])}
    return {"model": "speech", "messages": [said], "modalities": ["audio"], "audio": {"format": "wav"}, "seed": 1}


def transcription(sound: bytes) -> Json:
    """A job that writes down what is said."""
    part = {"type": "input_audio", "input_audio": {"data": b64encode(sound).decode(), "format": "wav"}}
    return {"model": "transcribe", "messages": [{"role": "user", "content": [part]}]}


def enlargement(picture: bytes) -> Json:
    """A job that enlarges a PNG."""
    url = f"data:image/png;base64,{b64encode(picture).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}]
    return {"model": "upscale", "messages": [{"role": "user", "content": content}], "modalities": ["image"]}


def spoken(model: str = "qwen2_5_omni") -> Json:
    """A job of the three stages of a Qwen-Omni, which seldom end their answers where their weights are random."""
    stages = {"thinker": {"max_tokens": 24}, "talker": {"max_tokens": 64}}
    said = {"role": "user", "content": SENTENCE}
    return {"model": model, "messages": [said], "modalities": ["text", "audio"], "stages": stages, "seed": 0}


def chat() -> Json:
    """A job of a language model that seldom ends by itself."""
    said = {"role": "user", "content": SENTENCE}
    return {"model": "chat", "messages": [said], "stages": {"llm": {"max_tokens": 16}}, "seed": 0}


def seen(picture: bytes) -> Json:
    """A job that answers in text to a picture."""
    content = [*enlargement(picture)["messages"][0]["content"], {"type": "text", "text": SENTENCE}]
    said = {"role": "user", "content": content}
    return {"model": "qwen2_5_vl", "messages": [said], "stages": {"llm": {"max_tokens": 16}}, "seed": 0}


def spoken_answer(sound: bytes) -> Json:
    """A job that hears, thinks and answers aloud."""
    heard = transcription(sound)["messages"]
    stages = {"think": {"max_tokens": 16}}
    return {"model": "voice", "messages": heard, "modalities": ["text", "audio"], "stages": stages, "seed": 0}


def drawing() -> Json:
    """A job that draws a small picture in few steps."""
    stages = {"denoise": {**DRAWN, "steps": 3}}
    said = {"role": "user", "content": SENTENCE}
    return {"model": "qwen_image", "messages": [said], "modalities": ["image"], "stages": stages, "seed": 0}


def edit(picture: bytes) -> Json:
    """A job that draws such a picture after another."""
    content = [*enlargement(picture)["messages"][0]["content"], {"type": "text", "text": SENTENCE}]
    stages = {"sources": {"pixels": 64 * 64}, "denoise": {**DRAWN, "steps": 3}}
    said = {"role": "user", "content": content}
    return {"model": "qwen_image_edit", "messages": [said], "modalities": ["image"], "stages": stages, "seed": 0}


def glm_drawing() -> Json:
    """A job that writes a small picture as tokens, and draws it in few steps."""
    said = {"role": "user", "content": SENTENCE}
    stages = {"generate": DRAWN, "denoise": {"steps": 3}}
    return {"model": "glm_image", "messages": [said], "modalities": ["image"], "stages": stages, "seed": 0}


def filming() -> Json:
    """A job that films a small video in few steps."""
    said = {"role": "user", "content": SENTENCE}
    stages = {"denoise": {**DRAWN, "num_frames": FRAMES, "steps": 3}}
    return {"model": "wan", "messages": [said], "modalities": ["video"], "stages": stages, "seed": 0}


def animation(picture: bytes) -> Json:
    """A job that films such a video after a picture."""
    content = [*enlargement(picture)["messages"][0]["content"], {"type": "text", "text": SENTENCE}]
    stages = {"begin": {**DRAWN, "num_frames": FRAMES}, "denoise": {"steps": 3}}
    said = {"role": "user", "content": content}
    return {"model": "wan_i2v", "messages": [said], "modalities": ["video"], "stages": stages, "seed": 0}


def every_medium() -> Json:
    """A job that answers by text, sound, a picture and a video."""
    said = {"role": "user", "content": SENTENCE}
    return {"model": "echo_media", "messages": [said], "modalities": ["text", *sorted(MEDIA)]}


def png(width: int, height: int) -> bytes:
    """Return a picture of coloured noise in blocks."""
    drawn = random.Random(5)
    row = [bytes(drawn.randrange(256) for _ in range(3)) * 8 for _ in range(width // 8)]
    lines = b"".join(
        b"\0" + b"".join(row[shift:] + row[:shift]) for y in range(height) for shift in [y // 8 % len(row)]
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def size_of(picture: bytes) -> tuple[int, int]:
    """Return a PNG's width and height."""
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def film_of(video: bytes) -> tuple[int, int, int]:
    """Return the width, the height and the frames of an MP4 of one track."""
    track = video.index(b"tkhd", video.index(b"moov"))
    (length,) = struct.unpack(">I", video[track - 4 : track])
    width, height = struct.unpack(">II", video[track + length - 12 : track + length - 4])
    samples = video.index(b"stsz", track) + 12
    (frames,) = struct.unpack(">I", video[samples : samples + 4])
    return width >> 16, height >> 16, frames


def fault(client: Client, body: Json, job: Json) -> str | None:
    """Return what is wrong with the result of a completed job, if anything is."""
    text = (job["result"] or {}).get("text")
    if body["model"] in {"echo", "remote"}:
        said = body["messages"][0]["content"]
        return None if text == said else f"{said} answered {text!r}"
    if body["model"] == "transcribe":
        return None if all(word in str(text).lower() for word in HEARD) else f"heard {text!r}"
    if body["model"] == "echo_media":
        kinds = {one["media_type"].partition("/")[0] for one in job["artifacts"]}
        return None if (text, kinds) == (SENTENCE, MEDIA) else f"{text!r} and {kinds}"
    if body["model"] in {"chat", "qwen2_5_vl"}:
        return None if text else "an empty answer"
    (artifact,) = job["artifacts"]
    data = client.raw("GET", f"/v1/jobs/{job['id']}/artifacts/{artifact['name']}")
    if (seconds := SOUND_S.get(body["model"])) is not None:
        long_enough = data[:4] == b"RIFF" and len(data) > seconds * 24_000 * 2
        return None if long_enough else f"sound of {len(data)} bytes"
    if body["modalities"] == ["video"]:
        film = film_of(data)
        return None if film == (*DRAWN.values(), FRAMES) else f"a video of {film}"
    wanted = (4 * SIDE, 4 * SIDE) if body["model"] == "upscale" else (DRAWN["width"], DRAWN["height"])
    return None if size_of(data) == wanted else f"a picture of {size_of(data)}"


SIDE = 192
MEDIA = {"audio", "image", "video"}
DRAWN = {"width": 64, "height": 96}
FRAMES = 9
SOUND_S = {"speech": 3.0, "qwen2_5_omni": 0.1, "qwen3_omni": 0.1, "voice": 0.1}  # at least


class Load:
    """Jobs that are submitted at once and then awaited, while something happens to the stack."""

    def __init__(self, client: Client, bodies: Sequence[Mapping[str, Any]]) -> None:
        self.client, self.tag = client, uuid4().hex
        self.bodies = [{**body, "metadata": {"load": self.tag}} for body in bodies]
        self.began = time.monotonic()
        self._errors = Counter(client.errors)
        with ThreadPoolExecutor(8) as pool:
            self.ids = list(pool.map(client.submit, self.bodies))

    def wait_until_running(self, pipeline: str, stage: str) -> None:
        """Wait until a stage run of this stage runs. Raises ClientError if none does."""
        mine = [(job, body) for job, body in zip(self.ids, self.bodies, strict=True) if body["model"] == pipeline]
        until = time.monotonic() + JOBS_S
        while time.monotonic() < until:
            found = [self.client.call("GET", f"/v1/jobs/{job}") for job, _ in mine]
            runs = [one["status"] for job in found for one in job["stages"] if one["name"] == stage]
            if "running" in runs:
                return
            if not {"queued", "pending"}.intersection(runs):  # they were too quick to be seen: more of them
                self.bodies.append(mine[0][1])
                self.ids.append(self.client.submit(mine[0][1]))
                mine.append((self.ids[-1], mine[0][1]))
            time.sleep(0.02)
        raise ClientError(f"no stage run of {pipeline}.{stage} was seen running")

    def end(self) -> Outcome:
        """Wait for all jobs, and say what became of them."""
        outcome = Outcome(submitted=len(self.ids))
        left, done = set(self.ids), dict[str, Json]()
        while left and time.monotonic() - self.began < JOBS_S:
            for job in list(left):
                found = self.client.call("GET", f"/v1/jobs/{job}")
                if found["status"] in ENDED:
                    done[job] = found
                    left.discard(job)
            if left:
                time.sleep(0.3)
        outcome.seconds = time.monotonic() - self.began
        for job, body in zip(self.ids, self.bodies, strict=True):
            if job not in done or (found := done[job])["status"] != "completed":
                outcome.lost += 1
                outcome.faults.append(f"{body['model']} {job}: {done[job]['error'] if job in done else 'not ended'}")
                continue
            outcome.completed += 1
            outcome.repeated += sum(stage["attempt"] - 1 for stage in found["stages"])
            if said := fault(self.client, body, found):
                outcome.wrong += 1
                outcome.faults.append(f"{body['model']} {job}: {said}")
            events = [event["type"] for event in json.loads(self.client.raw("GET", f"/v1/jobs/{job}/events"))]
            if events != ["job.completed"]:
                outcome.doubled += 1
                outcome.faults.append(f"{body['model']} {job}: {events}")
        more = len(self.client.jobs(metadata=f"load={self.tag}")) - len(self.ids)
        outcome.doubled += max(more, 0)
        outcome.lost += max(-more, 0)
        outcome.errors = self.client.errors - self._errors
        return outcome
