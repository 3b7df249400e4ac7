"""When a snapshot is due: after seconds or after steps, what comes first."""

import pytest

from workers.runners.diffusion.snapshot_interval import SnapshotInterval


@pytest.mark.parametrize(
    ("interval", "seconds", "steps", "is_due"),
    [
        (SnapshotInterval(10.0), 9.9, 1000, False),
        (SnapshotInterval(10.0), 10.0, 1, True),
        (SnapshotInterval(0.0), 1e9, 1000, False),
        (SnapshotInterval(0.0, 5), 1e9, 4, False),
        (SnapshotInterval(0.0, 5), 0.0, 5, True),
        (SnapshotInterval(10.0, 5), 1.0, 5, True),
        (SnapshotInterval(10.0, 5), 11.0, 1, True),
        (SnapshotInterval(10.0, 5), 1.0, 1, False),
    ],
)
def test_what_comes_first(interval: SnapshotInterval, seconds: float, steps: int, is_due: bool) -> None:
    assert interval.is_due(seconds, steps) is is_due
