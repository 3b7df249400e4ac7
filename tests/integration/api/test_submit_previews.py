"""``omni-jobs submit --previews --out DIR``: the request asks, and the newest preview is a file while the job runs."""

import base64
import threading
import time
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner, Result

from omni_jobs.cli import app
from omni_jobs.database.database import Database
from omni_jobs.jobs import Claim, Completion, NewWorker, ProgressReport
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.oracles import samples


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def claimed(api: ApiServer, stage: str) -> Claim:
    """The stage run of the one job, once it waits, in the hands of a worker."""
    jobs, echo = api.services.jobs, api.services.pipelines["echo"]
    jobs.register_worker(NewWorker(stage, stage, echo.stage_id(stage), "host", 1, 5, echo.version), 60.0)
    claims: list[Claim] = []
    until(lambda: claims.extend(jobs.claim(stage, 5).claims) or claims)
    return claims[0]


def test_the_newest_preview_is_a_file_until_the_job_is_completed(valkey_server: str, tmp_path: Path) -> None:
    settings = server_settings(tmp_path / "data", valkey_server, pipelines=("echo",))
    Database(settings.resolved_database_url).migrate()
    out, results = tmp_path / "out", list[Result]()
    pictures = [samples.image(width, 16, format="JPEG") for width in (16, 24)]
    with serve(settings) as api:
        arguments = ["submit", "Hello", "--previews", "--out", str(out), "--url", f"http://{api.host}:{api.port}"]
        waiting = threading.Thread(target=lambda: results.append(CliRunner().invoke(app, arguments)))
        waiting.start()
        jobs, claim = api.services.jobs, claimed(api, "first")
        assert claim.request["previews"] is True
        preview = out / "preview.jpeg"
        for done, picture in enumerate(pictures):
            url = f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"
            jobs.report_progress([ProgressReport(claim.stage_run_id, claim.attempt, done, 2, "steps", picture=url)])
            until(lambda picture=picture: preview.is_file() and preview.read_bytes() == picture)
        for stage in ("first", "second"):
            claim = claim if stage == "first" else claimed(api, stage)
            made = Completion(
                claim.stage_run_id, claim.attempt, stage, inline_payload=b"x", payload_bytes=1, result={"text": "done"}
            )
            assert jobs.report([made])[0].won
        waiting.join(20)
    assert not waiting.is_alive()
    [result] = results
    assert result.exit_code == 0, result.output
    assert result.stderr.count(f"the newest preview: {preview}") == 1
    assert {path.name for path in out.iterdir()} == {"result.json", "text.txt"}
