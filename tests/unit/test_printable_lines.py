"""omni_jobs.logs.printable: a worker's log, as Celery sets it up, steers no terminal."""

import io
import logging

import pytest
from celery import Celery

import workers.app  # noqa: F401  (connects the receiver)
from omni_jobs.logs.line_filter import LineFilter

EVIL = "\x1b]0;pwned\x07 \x9b31m \u202eback \r\x08\u2066"


def lines_of(*args: object, exc_info: BaseException | None = None) -> str:
    record = logging.LogRecord("workers", logging.WARNING, "", 0, *args, exc_info and (type(exc_info), exc_info, None))  # type: ignore[arg-type]
    assert LineFilter().filter(record)
    return logging.Formatter().format(record)


def test_words_of_strangers_steer_no_terminal() -> None:
    text = lines_of("attempt %d: %s", (2, ValueError(EVIL)))
    assert text.startswith("attempt 2: ")
    assert "pwned" in text
    assert text.isprintable()


def test_nor_do_those_of_a_traceback() -> None:
    text = lines_of("it broke", (), exc_info=ValueError(EVIL))
    assert text.startswith("it broke\n")
    assert "pwned" in text
    assert text.replace("\n", "").isprintable()


def test_other_lines_stay_as_they_are() -> None:
    assert lines_of("%s serves\n\t%s, Grüße, 你好", ("it", "all")) == "it serves\n\tall, Grüße, 你好"


def test_celery_s_own_handlers_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    written = io.StringIO()
    Celery(set_as_current=False).log.setup_logging_subsystem(loglevel="INFO", logfile=written, hijack_root_logger=True)
    logging.getLogger("workers.execution").warning("the server says %s", EVIL)
    assert "pwned" in written.getvalue()
    assert written.getvalue().replace("\n", "").isprintable()
