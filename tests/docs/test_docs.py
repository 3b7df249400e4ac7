"""What docs/api.md and docs/operations/ show must be so: requests, answers, routes, YAML, defaults.

The commands of all pages are read in test_commands, their settings in test_readme.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_jobs import errors
from omni_jobs.api.job_filters import JobAction
from omni_jobs.http.error_answers import shape_of
from omni_jobs.intake import backlog
from omni_jobs.pipelines.loader import load_pipeline, load_pipelines
from omni_jobs.pipelines.response_format import ResponseFormat
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.requests import JobRequest, cancel_after, parse_fork
from omni_jobs.settings import Settings
from omni_jobs.views import EventView, JobActionView, UsageReport
from omni_jobs.web.app import create_app
from tests.docs.pages import PAGES, ROOT, blocks, page, pages

API = page("api.md")
OPERATIONS = pages("operations")
SECONDS = {"s": 1, "min": 60, "h": 3600, "day": 86_400, "days": 86_400}


def kinds() -> dict[str, type[errors.OmniJobsError]]:
    found = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.OmniJobsError)
    ]
    return {kind.code: kind for kind in found}


def test_the_requests_are_valid() -> None:
    sent = re.findall(r"/v1/jobs(/[\w/-]+)?'? [^\n]*?-d '(\{.*?\})'", API, re.DOTALL)
    bodies = [json.loads(body) for action, body in sent if not action]
    assert len(bodies) == 5
    verbs = {action.rpartition("/")[2]: body for action, body in sent if action}
    assert verbs.keys() == {"delete", "fork"}
    assert JobAction.model_validate_json(verbs["delete"]).dry_run
    parse_fork(verbs["fork"].encode(), Settings())
    for body in bodies:
        wanted = JobRequest.model_validate(body).response_format
        assert wanted is None or ResponseFormat.model_validate(wanted)
    parts = re.findall(r"-F 'request=(\{.*?\});type=application/json' -F '(\w+)=@", API)
    assert [name for _, name in parts] == ["prompt_embeds"]
    JobRequest.model_validate(json.loads(parts[0][0]))
    headers = re.findall(r"-H 'Cancel-After: (.*?)'", API)
    assert headers
    for header in headers:
        cancel_after(header)


def test_the_routes_are_the_servers() -> None:
    shown = {
        (method, path.partition("?")[0])
        for cell in re.findall(r"^\| ((?:`[A-Z]+ /.*?`(?:, )?)+) \|", API, re.MULTILINE)
        for method, path in re.findall(r"`([A-Z]+) (/.*?)`", cell)
    }
    document = create_app(Settings()).openapi()
    there = {
        (
            method.upper(),
            path.replace("{job_id}", "{id}").replace("video_{digits}", "{id}").replace("{response_id}", "{id}"),
        )
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert shown == there


def test_the_queries_are_the_routes() -> None:
    document = create_app(Settings()).openapi()
    for method, path, query in re.findall(r"`([A-Z]+) (/[^?`]*)\?(.*?)`", API):
        route = document["paths"][path.replace("{id}", "{job_id}")][method.lower()]
        known = {parameter["name"] for parameter in route["parameters"] if parameter["in"] == "query"}
        assert set(re.findall(r"(\w+)=", query)) == known, path


def test_the_answers_have_the_models_of_the_api() -> None:
    events = 0
    for block in blocks(API, "json"):
        answer: Any = json.loads(block)
        if isinstance(answer, list):
            for event in answer:
                EventView.model_validate(event)
                events += 1
        elif "first_day" in answer:
            UsageReport.model_validate(answer, extra="forbid")
        elif "action" in answer:
            JobActionView.model_validate(answer, extra="forbid")
        elif set(answer) == {"error"}:
            error = answer["error"]
            kind = kinds()[error["code"]]
            assert error == shape_of(kind(error["message"], field=error["field"]))
    assert events == 2


def test_the_page_says_what_a_key_is_and_which_types_of_bodies_are_taken() -> None:
    (section,) = re.findall(r"^## Idempotency\n(.*?)^## ", API, re.MULTILINE | re.DOTALL)
    (unsupported,) = re.findall(r"^\| 415 \|.*$", API, re.MULTILINE)
    paths = create_app(Settings()).openapi()["paths"]
    for path in ("/v1/jobs", "/v1/jobs/bulk"):
        submit = paths[path]["post"]
        (key,) = (each for each in submit["parameters"] if each["name"] == "Idempotency-Key")
        (longest,) = re.findall(r"^1 to (\d+) visible ASCII characters", key["description"])
        assert "visible ASCII characters" in section
        assert re.search(rf"\b{longest}\b", section)
        assert [each for each in submit["requestBody"]["content"] if f"`{each}`" not in unsupported] == []
        assert f"`POST {path}`" in unsupported


def test_the_types_follow_from_the_status() -> None:
    shown = re.findall(r"^\| `(\w+_error)` \| (.*?) \|", API, re.MULTILINE)
    types = {int(status): name for name, statuses in shown for status in re.findall(r"\b4\d\d\b", statuses)}
    assert len(shown) == 7
    for kind in kinds().values():
        other = "server_error" if kind.http_status >= 500 else "invalid_request_error"
        assert shape_of(kind())["type"] == types.get(kind.http_status, other)


def test_the_codes_have_their_status() -> None:
    known = kinds()
    for status, codes in re.findall(r"^\| (4\d\d|5\d\d) \| (.*?) \|", API, re.MULTILINE):
        for code in re.findall(r"`(\w+)`", codes):
            if code in known:
                assert known[code].http_status == int(status), code


def test_every_status_of_a_route_is_in_the_table() -> None:
    table = set(re.findall(r"^\| (4\d\d|5\d\d) \|", API, re.MULTILINE))
    document = create_app(Settings()).openapi()
    answers = {
        status
        for methods in document["paths"].values()
        for route in methods.values()
        for status in route["responses"]
        if status >= "400"
    }
    assert answers <= table | {"416"}


def defaults() -> list[tuple[str, float]]:
    """The settings of a table's rows that show a default with a unit, as seconds."""
    found = []
    for name, value, unit in re.findall(r"`OMNI_JOBS_(\w+_S)` \| (\d+) (\w+) \|", OPERATIONS):
        found.append((name.lower(), float(value) * SECONDS[unit]))
    for name, value, unit in re.findall(r"`OMNI_JOBS_(\w+_S)` \((\d+) (\w+)\)", OPERATIONS):
        found.append((name.lower(), float(value) * SECONDS[unit]))
    return found


def test_the_defaults_are_found() -> None:
    assert {name for name, _ in defaults()} >= {
        name for name in Settings.model_fields if name.startswith("keep_") or name in ("orphan_after_s", "drain_s")
    }


@pytest.mark.parametrize(("name", "seconds"), defaults())
def test_the_defaults_are_the_defaults(name: str, seconds: float) -> None:
    assert Settings.model_fields[name].default == seconds


def test_counting_the_backlog_takes_no_more_than_is_said() -> None:
    assert "never more than a hundredth of the time" in OPERATIONS
    assert backlog._PAUSE_PER_COUNT >= 100


def test_the_stages_retries_are_the_defaults() -> None:
    [block] = [block for block in blocks(OPERATIONS, "yaml") if "retries:" in block]
    shown = yaml.safe_load(block)["stages"]["thinker"]
    stage = load_pipelines(ROOT / "stage_configs")["qwen2_5_omni"].stages["thinker"]
    changed = StageConfig.model_validate(stage.model_dump() | shown)
    assert changed.retries == StageConfig.model_fields["retries"].default
    assert changed.time_limit_s == StageConfig.model_fields["time_limit_s"].default
    assert changed.queue_limit_s == 3600


PIPELINES = {"denoise": "qwen_image", "llm": "chat", "think": "voice", "thinker": "qwen2_5_omni"}


def shown_stages() -> list[tuple[str, dict[str, Any]]]:
    """The parts of stage configs that pages for operators show, each with the name of such a stage of ours."""
    found = []
    for block in blocks(OPERATIONS, "yaml"):
        if block.startswith("stages:"):
            found.extend(yaml.safe_load(block)["stages"].items())
        elif block.startswith("    engine:"):
            found.append(("llm", yaml.safe_load(block)))
    return found


def test_the_parts_of_stage_configs_are_found() -> None:
    assert {stage for stage, _ in shown_stages()} == set(PIPELINES)


@pytest.mark.parametrize(("stage", "shown"), shown_stages(), ids=[stage for stage, _ in shown_stages()])
def test_the_parts_of_stage_configs_are_valid(stage: str, shown: dict[str, Any], tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "stage_configs" / f"{PIPELINES[stage]}.yaml").read_text(encoding="utf-8"))
    config["stages"][stage].update(shown)
    file = tmp_path / f"{PIPELINES[stage]}.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    assert load_pipeline(file).name == PIPELINES[stage]


def test_every_benchmark_in_the_docs_is_run_by_a_test() -> None:
    shown = set(re.findall(r"python -m benchmarks\.(\w+)", "".join(PAGES.values())))
    files = sorted((ROOT / "tests" / "e2e").glob("test_benchmarks*.py"))
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    assert shown
    assert shown <= set(re.findall(r'(?:figures_of\(tmp_path|"--only"), "(\w+)"', tests))
