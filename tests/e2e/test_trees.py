"""A diffusion stage's outputs and snapshots go through the queue as tensors, lists and dicts, to the bit."""

import os
from pathlib import Path

import pytest

from omni_jobs.client import Client
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from tests.trees.family import CONFIG, installed

ROOT = Path(__file__).parents[2]


def test_tensors_lists_and_dicts_arrive_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second stage refuses what is not what the first one made."""
    site = str(installed(tmp_path / "site"))
    monkeypatch.syspath_prepend(site)
    path = [site, str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    configs, checkpoint = tmp_path / "configs", tmp_path / "checkpoint"
    for directory in (configs, checkpoint):
        directory.mkdir()
    (configs / "trees.yaml").write_text(CONFIG, encoding="utf-8")
    settings = Settings(data_dir=tmp_path / "data", stage_configs=configs, models={"trees": checkpoint}, device="cpu")
    with EmbeddedStack(settings, pipelines=["trees"]) as stack, Client(stack.url) as client:
        said = [{"role": "user", "content": "grow"}]
        jobs = [
            client.submit({"model": "trees", "messages": said, "modalities": ["image"], "seed": seed})
            for seed in (0, 1, 2**63 - 1)
        ]
        ended = [client.wait(job.id, timeout=100) for job in jobs]
    assert [(job.status, job.error, job.warnings) for job in ended] == [(JobState.COMPLETED, None, [])] * 3
