"""Log lines: no API key stands in one, whoever put it there."""

import logging
import sys

import pytest

from omni_jobs.http.log_lines import RequestFilter

KEY = "omni_" + "Ab_-9" * 8 + "xyz"


@pytest.mark.parametrize(
    "path", [f"/v1/jobs?{KEY}=1", f"/v1/jobs/{KEY}", f"/?k=%6Fmni%5F{KEY[5:]}&b=c", f"/{KEY}{KEY}", f"/a?x={KEY}x"]
)
def test_the_access_log_masks_keys(path: str) -> None:
    args = ("127.0.0.1:1", "GET", path, "1.1", 404)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', args, None)
    assert RequestFilter().filter(record)
    line = record.getMessage()
    assert KEY[9:] not in line
    assert "omni_Ab_-" in line
    assert '"GET /' in line
    assert line.endswith("404")


def test_other_lines_stay_as_they_are() -> None:
    args = ("127.0.0.1:1", "GET", "/v1/jobs?a=%20%41", "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "%s %s %s %s %d", args, None)
    assert RequestFilter().filter(record)
    assert record.args == args


def test_errors_and_their_traces_show_no_key() -> None:
    try:
        raise ValueError(f"50% of {KEY} is no number")
    except ValueError as error:
        info = sys.exc_info()
        record = logging.LogRecord("omni_jobs", logging.ERROR, "", 0, "it failed: %s", (error,), info)
    assert RequestFilter().filter(record)
    shown = logging.Formatter().format(record)
    assert KEY[9:] not in shown
    assert "it failed: 50% of omni_Ab_-… is no number" in shown
    assert "Traceback" in shown
