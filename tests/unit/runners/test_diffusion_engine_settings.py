"""When a snapshot is due: after seconds or after steps, what comes first."""

import pytest

from workers.runners.diffusion.engine_settings import DiffusionEngine


@pytest.mark.parametrize(
    ("interval", "seconds", "steps", "is_due"),
    [
        ((10.0, None), 9.9, 1000, False),
        ((10.0, None), 10.0, 1, True),
        ((0.0, None), 1e9, 1000, False),
        ((0.0, 5), 1e9, 4, False),
        ((0.0, 5), 0.0, 5, True),
        ((10.0, 5), 1.0, 5, True),
        ((10.0, 5), 11.0, 1, True),
        ((10.0, 5), 1.0, 1, False),
    ],
)
def test_what_comes_first(interval: tuple[float, int | None], seconds: float, steps: int, is_due: bool) -> None:
    engine = DiffusionEngine(snapshot_every_s=interval[0], snapshot_every_steps=interval[1])
    assert engine.is_snapshot_due(seconds, steps) is is_due
