"""The API against its own document: a seeded run of schemathesis, all phases, with few examples and with many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_jobs.database.database import Database
from tests.integration.api_server import serve, server_settings

HOOKS = """
import schemathesis

@schemathesis.serializer("application/jsonl")
def lines(context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")

@schemathesis.hook
def before_call(context, case, kwargs):
    wait = (case.query or {}).get("wait")
    if isinstance(wait, str) and wait.isdecimal() or type(wait) in (int, float):  # texts are of the coverage phase
        if 0.1 < float(wait) <= 60:
            case.query["wait"] = 0.1  # it would be answered after that time, as it should
    if str((case.query or {}).get("stream")).lower() == "true":
        case.query["stream"] = False  # no worker runs, so that it would be read until the client's patience ends
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    if is_valid and case.media_type == "application/json" and isinstance(case.body, dict):
        # No form, because one with a file that is changed is taken for a wrong one.
        named = {"model": "echo_media"} if "model" in case.body else {}  # no other would make a job
        if case.path == "/v1/chat/completions":
            named["messages"] = [{"role": "user", "content": "Hello"}]
        if "stream" in case.body:
            named["stream"] = False
        case.body = {**case.body, **named}  # other cases share what it was

@schemathesis.hook
def filter_failure(context, failure, case, response):
    return not (response.status_code == 504 and b'"still_running"' in response.content)  # no worker runs
"""

# What no JSON schema says: that parts of a request fit each other, a filter its action, two days each other, and that
# a bulk answers for each line.
CONFIG = """
seed = 15

[generation]
max-examples = EXAMPLES
database = "none"

[checks]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 415, 422, 428, 429, 431, "5xx"]

[[operations]]
include-path = "/v1/jobs"
include-method = "POST"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-path-regex = "^/v1/(chat/completions|responses$|audio/|images/)"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-path = "/v1/videos"
include-method = "POST"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-path-regex = "/(retry|fork|advance)$"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-path = "/v1/jobs/cancel"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-path = "/v1/jobs/delete"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-path = "/v1/usage"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-path = "/v1/jobs/bulk"
checks.negative_data_rejection.enabled = false
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("examples", [3, pytest.param(8, marks=pytest.mark.long)])
def test_the_api_is_as_its_document_says(
    tmp_path: Path, valkey_server: str, tiny_checkpoint: Path, examples: int
) -> None:
    models, no_worker_runs = {"qwen2_5_omni": tiny_checkpoint}, 0.02
    settings = server_settings(tmp_path / "data", valkey_server, models=models, wait_limit_s=no_worker_runs)
    settings.data_dir.mkdir()
    Database(settings.resolved_database_url).migrate()
    (tmp_path / "schemathesis.toml").write_text(CONFIG.replace("EXAMPLES", str(examples)), encoding="utf-8")
    (tmp_path / "lines_hook.py").write_text(HOOKS, encoding="utf-8")
    with serve(settings) as api:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://{api.host}:{api.port}/openapi.json"]
        done = subprocess.run(
            [*command, "--no-color", "--warnings", "off", "--continue-on-failure", "--max-time", str(10 * examples)],
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": "lines_hook", "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert api.http.get("/healthz").status_code == 200
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2_000:]
    assert "Tested: 49" in done.stdout
