"""A worker whose engine cannot be loaded logs which share of its card would do."""

import logging
from contextlib import closing
from pathlib import Path

import pytest

from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.errors import EngineDead
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from tests.unit.cards.test_need import CONFIGS, SMI, omni
from workers.consumer.stage_host import StageHost
from workers.execution.slots import Slots

__all__ = ["omni"]


class DeadEngine:
    """Stands for a model that a card has no room for: its load fails."""

    def __init__(self, cuda_devices: tuple[int, ...]) -> None:
        self.cuda_devices = cuda_devices

    async def start(self) -> None:
        raise EngineDead("the card is full")


@pytest.mark.parametrize("cards", [(0,), ()])
async def test_a_load_that_fails_on_a_card_tells_what_would_do(
    cards: tuple[int, ...],
    omni: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(SMI.format(total=80 * 10**9 >> 20, free=80 * 10**9 >> 20))
    (programs / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    settings = Settings(data_dir=tmp_path, models={"qwen2_5_omni": omni}, gpu_memory_utilization=0.2)
    pipelines = load_pipelines(CONFIGS)
    host = StageHost(
        OmniCelery(settings, pipelines),
        pipelines["qwen2_5_omni"],
        "thinker",
        slot="thinker@test",
        slots=Slots(1, 0),
        keep_trying=lambda: False,
        on_room=lambda: None,
        on_broken=lambda reason: None,
        events=None,
    )
    host._llm = DeadEngine(cards)  # type: ignore[assignment]
    with closing(host._database), caplog.at_level(logging.ERROR), pytest.raises(EngineDead):
        await host.load()
    said = [record.getMessage() for record in caplog.records if "pipelines fit" in record.getMessage()]
    assert len(said) == len(cards)
    for line in said:
        assert "thinker takes about 26.1 GB of a card: a share of 0.33 of card 0 would do, and it has 0.2" in line
        assert line.endswith("; omni-jobs pipelines fit qwen2_5_omni divides cards")
