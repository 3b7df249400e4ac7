"""``run_program``: a program that fails, floods, hangs or leaves something behind."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import uvloop

from omni_jobs.errors import ConfigError, ModelError
from tests.processes import until_gone
from workers.parent_death import is_running
from workers.runners.program import run_program

LATE_S = 30.0


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Workers run on uvloop, and ``StageLLM`` offline on the loop of its caller."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", textwrap.dedent(code))


async def test_what_goes_in_comes_out() -> None:
    data = os.urandom(3 << 20)
    assert await run_program(["cat"], data) == data


MANY = """
    import asyncio, sys, uvloop
    from workers.runners.program import run_program

    async def many():
        answers = await asyncio.gather(*(run_program(["cat"], b"%d" % number) for number in range(20)))
        assert answers == [b"%d" % number for number in range(20)], answers
        ended_first = await asyncio.gather(*(run_program(["true"], b"unread") for _ in range(40)))
        assert ended_first == [b""] * 40, ended_first

    asyncio.set_event_loop_policy(eval(sys.argv[1])())
    asyncio.run(many())
"""


@pytest.mark.parametrize("policy", ["asyncio.DefaultEventLoopPolicy", "uvloop.EventLoopPolicy"])
def test_many_at_once_also_of_those_that_end_before_they_are_written_to(policy: str) -> None:
    """In a small process, because uvloop forks, and each fork of a process as large as this one takes long."""
    code = textwrap.dedent(MANY)
    done = subprocess.run([sys.executable, "-c", code, policy], capture_output=True, text=True, timeout=LATE_S)
    assert done.returncode == 0, done.stderr


async def test_a_program_that_reads_nothing_of_much() -> None:
    assert await run_program(["true"], bytes(8 << 20)) == b""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit('no such voice')", "ended with 1: no such voice"),
        ("raise SystemExit(3)", "ended with 3$"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by signal 11"),
        ("import sys; sys.stderr.write('x' * 1_000_000 + 'the end'); sys.exit(2)", "ended with 2: x{493}the end"),
        ("import sys; sys.stderr.buffer.write(b'\\xff'); sys.exit(2)", "ended with 2: \N{REPLACEMENT CHARACTER}"),
    ],
)
async def test_a_program_that_fails_says_why(code: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        await run_program(python(code))


@pytest.mark.parametrize("name", ["no-such-program-at-all", "/"])
async def test_a_program_that_cannot_be_started(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} cannot be started: (No such file|Permission denied)"):
        await run_program([name])


FLOOD = """
    import sys
    for _ in range(2000):
        sys.{}.write('x' * 10_000)
"""


@pytest.mark.parametrize("times", range(5))
async def test_a_flood_is_an_error(times: int) -> None:
    async with asyncio.timeout(LATE_S):
        with pytest.raises(ModelError, match="more than 1,000 bytes"):
            await run_program(python(FLOOD.format("stdout")), most_bytes=1000)


async def test_of_a_flood_of_errors_the_end_is_kept() -> None:
    async with asyncio.timeout(LATE_S):
        assert await run_program(python(FLOOD.format("stderr")), most_bytes=1000) == b""


async def test_a_process_that_left_the_group_keeps_no_run(tmp_path: Path) -> None:
    """It holds the pipes, and nobody knows of it."""
    code = """
        import os, pathlib, subprocess, sys
        print("said", flush=True)
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}\\n")
    """
    async with asyncio.timeout(LATE_S):
        assert await run_program((*python(code), str(tmp_path / "pids"))) == b"said\n"
    _, left = await processes(tmp_path / "pids")
    os.kill(left, signal.SIGKILL)


LEAVING = """
    import os, pathlib, signal, subprocess, sys
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    nothing = subprocess.DEVNULL
    child = subprocess.Popen(["sleep", "600"], stdin=nothing, stdout=nothing, stderr=nothing)
    pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}\\n")
    if sys.argv[2] == "stay":
        signal.pause()
"""


async def processes(file: Path) -> list[int]:
    async with asyncio.timeout(LATE_S):
        while not (file.exists() and file.read_text().endswith("\n")):
            await asyncio.sleep(0.01)
    return [int(word) for word in file.read_text().split()]


async def test_cancelling_kills_it_and_what_it_started(tmp_path: Path) -> None:
    run = asyncio.create_task(run_program((*python(LEAVING), str(tmp_path / "pids"), "stay")))
    started = await processes(tmp_path / "pids")
    assert all(map(is_running, started))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    until_gone(started, LATE_S)


async def test_what_it_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    async with asyncio.timeout(LATE_S):
        await run_program((*python(LEAVING), str(tmp_path / "pids"), "leave"))
    until_gone(await processes(tmp_path / "pids"), LATE_S)


async def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from workers.runners.program import run_program; asyncio.run(run_program(sys.argv[1:]))"
    )
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *python(LEAVING), str(tmp_path / "pids"), "stay"
    )
    program, left = await processes(tmp_path / "pids")
    worker.kill()
    await worker.wait()
    try:
        until_gone([program], LATE_S)
    finally:
        os.kill(left, signal.SIGKILL)


async def test_it_has_no_secret_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_JOBS_DATABASE_URL", "postgresql://me:hidden@here/db")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("PLAIN", "shown")
    seen = await run_program(["env"])
    assert b"shown" in seen
    assert b"hidden" not in seen
