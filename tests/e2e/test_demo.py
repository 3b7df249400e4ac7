"""The first of README's two commands, as a newcomer runs it, and the demo of three stages."""

import json
import subprocess
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracles.word_errors import word_error_rate

ROOT = Path(__file__).parents[2]


def demo(*arguments: object) -> str:
    """Run the demo, and return what it prints."""
    command = [ROOT / "scripts" / "demo", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def result_of(directory: Path, stages: list[str]) -> dict[str, Any]:
    """Return what result.json says, once it, the text and the sound in the directory are checked."""
    result: dict[str, Any] = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "completed"
    assert [(stage["name"], stage["status"]) for stage in result["stages"]] == [(name, "succeeded") for name in stages]
    assert (directory / "text.txt").read_text(encoding="utf-8") == result["result"]["text"] != ""
    with wave.open(str(directory / "audio.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767
    assert np.sqrt(np.mean(samples**2)) > 1e-3
    return result


@pytest.mark.timeout(600)
def test_the_demo_hears_a_question_and_speaks_the_answer(tmp_path: Path) -> None:
    said = demo("--out", tmp_path)
    result = result_of(tmp_path, ["listen", "think", "acoustic", "vocoder"])
    heard = result["result"]["texts"]["listen"]
    assert word_error_rate("What should I do when I cannot sleep at night?", heard) <= 0.1
    assert heard in said
    assert (tmp_path / "question.wav").is_file()
    assert "attempt 2 succeeded, after worker_lost" in said
    assert "the same text, and the same sound to the last bit" in said


@pytest.mark.timeout(600)
def test_the_demo_of_three_stages_ends_with_text_and_sound(tmp_path: Path) -> None:
    said = demo("--omni", "--out", tmp_path)
    assert "random weights" in said
    result_of(tmp_path, ["thinker", "talker", "code2wav"])
    assert all(stage in said for stage in ("thinker", "talker", "code2wav"))
