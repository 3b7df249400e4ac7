"""The first of README's two commands, as a newcomer runs it, and the demos of three stages and of a picture."""

import json
import subprocess
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

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


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_demo_of_three_stages_ends_with_text_and_sound(tmp_path: Path) -> None:
    said = demo("--omni", "--out", tmp_path)
    assert "random weights" in said
    result_of(tmp_path, ["thinker", "talker", "code2wav"])
    assert all(stage in said for stage in ("thinker", "talker", "code2wav"))


@pytest.mark.long
def test_the_demo_of_a_picture_shows_it_before_and_after(tmp_path: Path) -> None:
    said = demo("--picture", "--out", tmp_path)
    before, after, both = (
        np.asarray(Image.open(tmp_path / name)) for name in ("before.png", "image.png", "before-after.png")
    )
    assert (before.shape, after.shape) == ((64, 64, 3), (256, 256, 3))
    beside = np.concatenate([before.repeat(4, axis=0).repeat(4, axis=1), after], axis=1)
    assert np.array_equal(both, beside)
    assert "before-after.png" in said
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert [(stage["name"], stage["status"]) for stage in result["stages"]] == [("enlarge", "succeeded")]
    assert "where bicubic interpolation comes to 23.1 dB" in said


def test_the_demo_of_a_picture_that_is_not_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "demo.py").write_text("raise SystemExit('another demo, which the user has in this directory')")
    command = [ROOT / "scripts" / "demo", "--picture", tmp_path / "none.png"]
    missing = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (missing.returncode, "no such file" in missing.stderr) == (2, True)
