import gc
import logging
import math
import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

gc.disable()  # until all tests are imported: the collector would search millions of new objects again and again
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a shell's "&": the processes of the tests hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("shared machine", deadline=None)  # how fast is not a test's business
hypothesis.settings.load_profile("shared machine")

collect_ignore = ["gpu"]  # scripts/gpu runs them

pytest_plugins = [
    "tests.services.postgres",
    "tests.services.mortal_database",
    "tests.services.valkey",
    "tests.services.seaweedfs",
    "tests.services.checkpoint",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """From here on garbage is collected, but not searched for among what the imports made."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Where the time of a run is bounded, in seconds since 1970: a test that has not begun by then is skipped, and says so.
END_AT = float(os.environ.get("TESTS_END_AT", "inf"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() > END_AT:
        pytest.skip("not run: the time of this run is over")


COMPUTING = ("e2e", "integration/offline", "integration/runners")  # models; the other files often wait for processes


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where files run side by side, those that compute take turns with those that wait; unit tests come last.

    In a run whose time is bounded unit tests come first, because most of what is tested in a minute is theirs.
    """
    if not hasattr(config, "workerinput"):
        return
    here = Path(__file__).parent
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path.relative_to(here).as_posix(), []).append(item)
    last = [name for name in files if name.startswith("unit/")]
    computing = [name for name in files if name.startswith(COMPUTING)]
    waiting = [name for name in files if name not in computing and name not in last]
    turns = [(n / len(kind), name) for kind in (computing, waiting) for n, name in enumerate(kind)]
    order = [name for _, name in sorted(turns, key=lambda turn: turn[0])]
    in_order = (*order, *last) if math.isinf(END_AT) else (*last, *order)
    items[:] = [item for name in in_order for item in files[name]]


_UMASK = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_UMASK] = os.umask(0o022)
    os.umask(config.stash[_UMASK])


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else libraries report at the interpreter's end what it has not freed


@pytest.fixture(autouse=True)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Commands that serve set the process's umask, which is right for them and not for the tests that follow.

    The umask is that of the session's start, because a fixture of a module may run such a command before its tests.
    """
    yield
    os.umask(request.config.stash[_UMASK])


@pytest.fixture(autouse=True)
def _log_handlers() -> Iterator[None]:
    """Commands that serve log on the standard error that a test gave them, which is closed at its end.

    A later line would print a traceback into what another test's command says.
    """
    yield
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler:  # pytest's own are of other types
            root.removeHandler(handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests log text of any kind, lone surrogates too; what runs tests side by side sends reports as UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
