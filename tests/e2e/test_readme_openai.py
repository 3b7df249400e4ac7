"""README's section on OpenAI's clients, as a newcomer follows it: with all processes killed in the middle."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.client import Client
from tests.processes import descendants, until_gone

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHOWN = README.partition("## OpenAI's clients")[2].partition("\n## ")[0]
FIRST, AFTERWARDS = re.findall(r"```python\n(.*?)```", SHOWN, re.DOTALL)
URL = "http://127.0.0.1:8000"


@contextmanager
def up(directory: Path, port: str) -> Iterator[tuple[str, int]]:
    """The command of the page, in this directory: its URL and its process."""
    command = "omni-jobs up --pipeline echo_media"
    assert f"`{command}`" in SHOWN
    with subprocess.Popen(
        ["bash", "-c", f"exec {command} --data-dir data --port {port}"],
        cwd=directory,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            (url,) = re.findall(r"is up at (http://[\w.:]+)", process.stdout.readline())
            yield url, process.pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_video_is_made_though_all_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "*")
    names: dict[str, Any] = {}
    with up(tmp_path, "0") as (url, pid):
        exec(compile(FIRST.replace(URL, url), "README.md", "exec"), names)
        job_id = names["video"].id.replace("video_", "job-")
        with Client(url) as client:
            for job in client.watch(job_id):
                if any(stage.progress is not None for stage in job.stages):
                    break
        all_of_them = [pid, *descendants(pid)]
        for each in all_of_them:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        until_gone(all_of_them, 30)
    with up(tmp_path, url.rpartition(":")[2]):
        exec(compile(AFTERWARDS, "README.md", "exec"), names)
        names["client"].close()
    assert capsys.readouterr().out.splitlines() == ["Hello", names["video"].id]
    assert names["video"].status == "completed"
    assert (tmp_path / "lighthouse.mp4").read_bytes()[4:8] == b"ftyp"
