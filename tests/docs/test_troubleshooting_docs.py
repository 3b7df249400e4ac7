"""docs/operations/troubleshooting.md names what there is, and all that an operator may see."""

import re
from collections import defaultdict
from typing import get_args

import pytest

from omni_jobs.cli.exits import Exit
from omni_jobs.doctor import EXAMINATIONS
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.retry import DEFAULT_RETRIES, retry_delay
from omni_jobs.views import JobView, WaitingView
from tests.docs.pages import ROOT, page
from tests.docs.test_docs import kinds

TEXT = page("operations/troubleshooting.md")
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for room in ("omni_jobs", "workers")
    for path in sorted((ROOT / room).rglob("*.py"))
)


def rows(section: str) -> list[list[str]]:
    """The cells of the rows of a section's table, without its head."""
    (part,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^\| (.*) \|$", part.replace("| |", "|  |"), re.MULTILINE)
    return [line.split(" | ") for line in lines[1:] if not line.startswith("---")]


def first_cells(section: str) -> list[str]:
    return [name for cells in rows(section) for name in re.findall(r"`(.+?)`", cells[0])]


JOBS, REQUESTS, PROCESSES = (
    first_cells(section)
    for section in ("A job ended without its result", "A request is refused", "A process does not start, or ends")
)


def test_every_reason_to_wait_has_its_row() -> None:
    assert sorted(first_cells("A job waits")) == sorted(get_args(WaitingView.model_fields["reason"].annotation))


def test_every_code_of_an_error_is_there_and_no_other() -> None:
    assert set(JOBS + REQUESTS) <= kinds().keys()
    shown = set(re.findall(r"`([a-z_]+)`", TEXT)) & kinds().keys()
    assert sorted(kinds().keys() - shown) == []
    assert sorted(set(JOBS) & set(REQUESTS)) == []


def test_each_name_in_it_is_one_of_the_codes_or_of_what_a_job_shows() -> None:
    shown = {*JobView.model_fields, *WaitingView.model_fields, *StageConfig.model_fields}
    commands = {"doctor", "status", "top", "readyz"}
    reasons = get_args(WaitingView.model_fields["reason"].annotation)
    known = {*kinds(), *reasons, *EXAMINATIONS, "versions", *shown, *commands}
    assert sorted(set(re.findall(r"`([a-z_]+)`", TEXT)) - known) == []


@pytest.mark.parametrize("cells", rows("A job ended without its result"), ids=lambda cells: cells[0])
def test_what_is_tried_again_is_what_the_default_retries_say(cells: list[str]) -> None:
    for code in re.findall(r"`(.+?)`", cells[0]):
        failed = retry_delay(kinds()[code](), defaultdict(lambda: 1), DEFAULT_RETRIES)
        assert cells[1] == ("no" if failed is None else "yes"), code


def test_lines_of_logs_are_written_so() -> None:
    lines = [line for line in PROCESSES if line not in kinds()]
    assert len(lines) >= 15
    assert [line for line in lines if line not in re.sub(r'"\s*\n\s*f?"', "", CODE)] == []


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    shown = {int(cells[0]) for cells in rows("A command fails")}
    assert shown == {value for name, value in vars(Exit).items() if name.isupper()}


def test_each_examination_of_the_doctor_has_its_row() -> None:
    assert set(first_cells("`omni-jobs doctor` finds something")) == {*EXAMINATIONS, "versions"}
