"""The demo: one job through every stage on this machine, from nothing to a sound file.

    scripts/demo                     a tiny checkpoint with random weights: noise, but every part real
    scripts/demo --model PATH        a real Qwen2.5-Omni checkpoint directory
    scripts/demo --out DIR           keeps result.json, text.txt and audio.wav

Starts the embedded stack in a directory of its own, submits a text, a sound and a
picture over HTTP, shows each stage's progress, checks what came back, stops everything.
Exit 0 only if all of it happened.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.text import Text

from omni_jobs.client import Client, user_message
from omni_jobs.console import in_bytes, in_seconds, printable, show_progress, show_start, timeline
from omni_jobs.errors import ConfigError, OmniJobsError, StageError
from omni_jobs.settings import Settings
from omni_jobs.signals import raised_signals
from omni_jobs.stack import EmbeddedStack
from omni_jobs.states import JobState

if TYPE_CHECKING:
    from omni_jobs.views import JobView

PIPELINE = "qwen2_5_omni"
PROMPT = "What do you hear, and what do you see? Answer in one sentence."
SILENCE_RMS = 1e-3  # -60 dB of full scale
JOB_LIMIT_S = 1800.0
# Random weights seldom end by themselves.
TINY_STAGES = {"thinker": {"max_tokens": 48}, "talker": {"max_tokens": 128}}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    console = Console()
    with raised_signals():
        try:
            run(options.model, options.out, console)
        except OmniJobsError as error:
            console.print(Text(f"The demo failed: {error}", style="red"))
            return 1
        except TimeoutError as error:
            console.print(Text(f"The demo failed: {error}", style="red"))
            return 1
        except KeyboardInterrupt:
            console.print("Interrupted; everything is stopped.")
            return 130
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description=(__doc__ or "").split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="a Qwen2.5-Omni checkpoint directory")
    parser.add_argument("--out", type=Path, help="where to write result.json, text.txt and audio.wav")
    return parser.parse_args(arguments)


def run(model: Path | None, out: Path | None, console: Console) -> None:
    """The whole demo. Raises OmniJobsError when any part of it does not happen."""
    began = time.monotonic()
    stages: dict[str, Any] = {}
    if model is None:
        console.print(
            "No --model given: a tiny Qwen2.5-Omni checkpoint with [bold]random weights[/bold] is used.\n"
            "Its text and its sound are noise; every part that makes them is real."
        )
        model, stages = tiny_checkpoint(console), TINY_STAGES
    out = out or _cache() / "demo"
    with tempfile.TemporaryDirectory(prefix="omni-jobs-demo-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        settings = Settings(data_dir=scratch / "data", models={PIPELINE: model})
        _title(console, "The stack: a broker, an API, a rescuer and one worker per stage, each its own process")
        stack = EmbeddedStack(settings, pipelines=[PIPELINE], temporary=True)
        try:
            show_start(stack)
            started = time.monotonic()
            _title(console, f"One job over HTTP: a text, a sound and a picture to {stack.url}/v1/jobs")
            with Client(stack.url) as client:
                job = client.submit(_request(scratch, stages))
                console.print(f"submitted {job.id}", highlight=False)
                job = show_progress(client, job.id, JOB_LIMIT_S)
                if job.status != JobState.COMPLETED:
                    raise StageError(f"job {job.id} is {job.status.value}: {job.error.message if job.error else ''}")
                files = client.save(job, out)
            finished = time.monotonic()
            _show(console, job, out, files)
        finally:
            stack.stop()
    console.print(
        f"\nAll of it happened, and everything is stopped: {in_seconds(started - began)} to start, "
        f"{in_seconds(finished - started)} for the job, {in_seconds(time.monotonic() - finished)} to stop.",
        highlight=False,
    )


def tiny_checkpoint(console: Console) -> Path:
    """The tiny checkpoint, built once by the code that is installed and kept in the clone's ``.cache``.

    In a process of its own: this one stays without torch.
    """
    spec = find_spec("workers")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the package 'workers' is not installed here: run scripts/setup")
    code = Path(spec.submodule_search_locations[0]) / "tiny_checkpoint.py"
    directory = _cache() / f"tiny-checkpoint-{hashlib.sha256(code.read_bytes()).hexdigest()[:12]}"
    if not directory.is_dir():  # it appears whole or not at all
        with console.status("building the tiny checkpoint"):
            built = subprocess.run(
                [sys.executable, "-m", "workers.tiny_checkpoint", str(directory)], capture_output=True, text=True
            )
        if built.returncode != 0:
            raise ConfigError(f"the tiny checkpoint could not be built:\n{built.stderr[-2000:]}")
    return directory


def _cache() -> Path:
    clone = Path(__file__).resolve().parents[1]
    return clone / ".cache" if (clone / "scripts" / "demo").is_file() else Path.home() / ".cache" / "omni-jobs"


def _request(scratch: Path, stages: dict[str, Any]) -> dict[str, Any]:
    """A chat completion's body with a second of sound and a small picture, both made here."""
    sound, picture = scratch / "sweep.wav", scratch / "gradient.png"
    seconds = np.arange(16_000) / 16_000
    sweep = np.sin(2 * np.pi * (220 + 220 * seconds) * seconds)
    with wave.open(str(sound), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((sweep * 12_000).astype("<i2").tobytes())
    ramp = np.linspace(0, 255, 112, dtype=np.uint8)
    Image.fromarray(np.dstack(np.broadcast_arrays(ramp[:, None], ramp[None, :], np.uint8(128)))).save(picture)
    return {
        "model": PIPELINE,
        "messages": [user_message(PROMPT, audio=[sound], images=[picture])],
        "modalities": ["text", "audio"],
        "stages": stages,
        "seed": 0,
    }


def _show(console: Console, job: JobView, out: Path, files: Sequence[Path]) -> None:
    """What came back. Raises StageError when the text is missing or the sound is silence."""
    text = (job.result or {}).get("text")
    if not text:
        raise StageError("the job has no text")
    _title(console, "What came back")
    console.print(Text(printable(text)), soft_wrap=True)
    seconds, rms = loudness(out / "audio.wav")
    if rms < SILENCE_RMS:
        raise StageError(f"the sound is silence: RMS {rms:.1e} of full scale")
    console.print(f"\naudio.wav: {in_seconds(seconds)} of sound, RMS {rms:.3f} of full scale", highlight=False)
    for path in files:
        console.print(f"{path}  ({in_bytes(path.stat().st_size)})", highlight=False, soft_wrap=True)
    _title(console, "Where the time went  (░ queued, █ running)")
    console.print(timeline(job))


def loudness(path: Path) -> tuple[float, float]:
    """Seconds and RMS (of full scale) of a 16-bit WAV. Raises StageError when it is none."""
    try:
        with wave.open(str(path), "rb") as file:
            if file.getsampwidth() != 2:
                raise StageError(f"{path.name} is not a 16-bit WAV")
            frames, rate = file.readframes(file.getnframes()), file.getframerate()
    except (OSError, EOFError, wave.Error) as error:
        raise StageError(f"{path.name} is not a WAV: {error}") from error
    samples = np.frombuffer(frames, dtype="<i2").astype(np.float64) / 32768
    return len(samples) / rate, float(np.sqrt(np.mean(samples**2))) if len(samples) else 0.0


def _title(console: Console, title: str) -> None:
    console.print(f"\n[bold]{title}[/bold]", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
