"""What a worker hands over of the progress of its stage runs."""

import asyncio
from dataclasses import replace

from hypothesis import given, strategies

from omni_jobs.jobs import ProgressReport, TextPiece
from workers.execution.progress_reports import NewestReports, WatchedRuns

REPORT = ProgressReport(7, 1, 3, None, "tokens", text="Good")


@given(strategies.lists(strategies.integers(0, 40), min_size=1))
def test_the_pieces_of_growing_texts_make_the_text(growth: list[int]) -> None:
    runs = WatchedRuns()
    runs.add(7, 1.0)
    text, written = "", ""
    for chars in growth:
        text += "x" * chars + str(len(text))
        report, piece = runs.take_piece(replace(REPORT, text=text))
        assert (report.text, report.chars) == (None, len(text))
        assert piece == TextPiece(7, 1, len(written), text[len(written) :])
        written += piece.text
    assert written == text
    assert runs.take_piece(replace(REPORT, text=text))[1] is None


def test_a_text_begins_anew_with_its_attempt_and_with_each_watch() -> None:
    runs = WatchedRuns()
    runs.set({7: 1.0, 8: 1.0})
    assert 7 in runs
    whole = TextPiece(7, 1, 0, "Good")
    assert runs.take_piece(REPORT)[1] == whole
    runs.set({7: 1.0})
    assert 8 not in runs
    assert runs.take_piece(REPORT)[1] is None
    runs.set({7: 2.0})
    assert runs.take_piece(REPORT)[1] == whole
    assert runs.take_piece(replace(REPORT, attempt=2))[1] == whole._replace(attempt=2)
    runs.set({})
    runs.add(7, 2.0)
    assert runs.take_piece(REPORT)[1] == whole


def test_a_report_without_a_text_stays_as_it_is() -> None:
    assert WatchedRuns().take_piece(replace(REPORT, text=None)) == (replace(REPORT, text=None), None)


async def test_the_newest_report_of_each_is_handed_over() -> None:
    handed: list[dict[int, ProgressReport]] = []
    reports = NewestReports(3600.0, handed.append)
    reports.put(REPORT)
    reports.put(newest := replace(REPORT, done=4))
    reports.put(other := replace(REPORT, stage_run_id=8))
    reports.put(replace(REPORT, stage_run_id=9))
    reports.forget(9)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert handed == [{7: newest, 8: other}]
    reports.put(REPORT)  # an hour later
    await asyncio.sleep(0)
    assert len(handed) == 1
    reports.flush()
    assert handed[1:] == [{7: REPORT}]
    reports.flush()
    assert len(handed) == 2
