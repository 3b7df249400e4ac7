"""A checkpoint directory that cannot be used is refused with the reason, by the API and by workers."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.errors import ConfigError, ModelMissing
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.prompts.checkpoint_files import check_checkpoint
from omni_jobs.prompts.renderers import Renderers
from omni_jobs.settings import Settings
from workers.stages.engine_args import OmniModelConfig

ROOT = Path(__file__).parents[3]
SOMEBODY = 65534


@pytest.fixture
def checkpoint() -> Iterator[Path]:
    """A directory with the files' names, where any user may come."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            (Path(directory) / name).write_text("{}")
            (Path(directory) / name).chmod(0o644)
        yield Path(directory)


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """As the Hugging Face cache keeps it: the snapshot's files are links to ../../blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abcd"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (blobs / f"blob-{name}").write_text("{}")
        (snapshot / name).symlink_to(Path("../..") / "blobs" / f"blob-{name}")
    return snapshot


def refusals(path: Path) -> list[str]:
    """What the API and a worker say of it."""
    pipeline = load_pipelines(ROOT / "stage_configs").named("qwen2_5_omni", field="pipeline")
    with pytest.raises(ModelMissing) as api:
        Renderers(Settings(models={pipeline.name: path})).of(pipeline)
    with pytest.raises(ConfigError) as worker:
        OmniModelConfig.for_stage(pipeline, pipeline.stage("talker"), path)
    assert worker.value.to_dict()["stage"] == "talker"
    return [str(api.value), str(worker.value)]


def test_a_directory_of_files_is_taken(checkpoint: Path, snapshot: Path) -> None:
    check_checkpoint(checkpoint)
    check_checkpoint(snapshot)


def test_a_snapshot_without_its_blobs_is_refused(snapshot: Path, tmp_path: Path) -> None:
    """What a container sees of it."""
    (tmp_path / "blobs").rename(tmp_path / "elsewhere")
    for message in refusals(snapshot):
        assert "config.json" in message
        assert "../../blobs/blob-config.json, which is not there" in message
        assert "--local-dir" in message


def test_weights_that_dangle_alone_are_refused(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs" / "blob-model.safetensors").unlink()
    for message in refusals(snapshot):
        assert "model.safetensors" in message


def test_a_directory_that_is_missing_is_refused(tmp_path: Path) -> None:
    for message in refusals(tmp_path / "nothing"):
        assert f"{tmp_path / 'nothing'}: no such checkpoint directory" in message


@pytest.mark.parametrize(
    ("closed", "mode", "message"),
    [
        (".", 0o700, "may not read this checkpoint directory"),
        (".", 0o744, "may not read this checkpoint directory"),
        ("model.safetensors", 0o600, "may not read it"),
        ("config.json", 0o600, "may not read it"),
    ],
)
def test_a_checkpoint_unreadable_for_another_user_is_refused(
    checkpoint: Path, closed: str, mode: int, message: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    (checkpoint / closed).chmod(mode)
    code = f"""
import os
from pathlib import Path
from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import check_checkpoint
os.setgroups([])
os.setgid({SOMEBODY})
os.setuid({SOMEBODY})
try:
    check_checkpoint(Path({str(checkpoint)!r}))
except ConfigError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert f"user {SOMEBODY} {message}" in result.stdout
    assert str(checkpoint) in result.stdout
