"""The first of README's two commands, as a newcomer runs it."""

import json
import subprocess
import wave
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_the_demo_ends_with_text_and_sound(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "demo", "--out", tmp_path], capture_output=True, text=True, timeout=540, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "random weights" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "completed"
    assert [(stage["name"], stage["status"]) for stage in result["stages"]] == [
        ("thinker", "succeeded"),
        ("talker", "succeeded"),
        ("code2wav", "succeeded"),
    ]
    assert (tmp_path / "text.txt").read_text(encoding="utf-8") == result["result"]["text"] != ""
    with wave.open(str(tmp_path / "audio.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767
    assert np.sqrt(np.mean(samples**2)) > 1e-3
    assert all(stage in done.stdout for stage in ("thinker", "talker", "code2wav"))
