"""The words of the audit's page."""

from typing import get_args

from omni_jobs.dashboard.audit import WORDS
from omni_jobs.database.audit import ActKind


def test_every_act_has_its_word() -> None:
    assert set(WORDS) == set(get_args(ActKind))
