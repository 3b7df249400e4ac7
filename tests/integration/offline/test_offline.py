"""``OmniLLM`` without a model: order, errors, streaming. With a model: tests/e2e."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import ConfigError, InvalidRequest, NotFound, OmniJobsError, TimeLimitExceeded
from omni_jobs.settings import Settings
from workers.offline import OmniLLM, OmniOutput


@pytest.fixture(scope="module")
def llm() -> Iterator[OmniLLM]:
    with OmniLLM("echo") as started:
        yield started


def request(text: str, **first: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "stages": {"first": first}}


def texts(results: list[OmniOutput | OmniJobsError]) -> list[str | None]:
    return [result.text for result in results if isinstance(result, OmniOutput)]


def test_results_stand_in_the_order_of_the_requests(llm: OmniLLM) -> None:
    slow_first = [request(str(n), delay_s=0.2 - n / 50) for n in range(8)]
    assert texts(llm.generate(slow_first)) == [str(n) for n in range(8)]


def test_stages_overlap_across_requests(llm: OmniLLM) -> None:
    """The second request passes the first, which is still in its first stage."""
    streamed = llm.stream([request("slow", delay_s=2.0), request("quick")])
    assert [index for index, _ in streamed] == [1, 0]


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ({"think": "/nowhere"}, ConfigError, "/nowhere: no such checkpoint directory"),
        ({"thinker": "/nowhere"}, NotFound, "no stage 'thinker'; it has listen, think, acoustic, vocoder"),
        ("/nowhere", ConfigError, "with the key voice.think$"),  # no stage of it has the pipeline's model
    ],
)
def test_a_checkpoint_goes_to_the_stage_that_it_is_given_to(
    model: str | dict[str, str], error: type[OmniJobsError], message: str
) -> None:
    with pytest.raises(error, match=message):
        OmniLLM("voice", model=model)


def test_a_setting_that_a_server_refuses_is_refused_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_JOBS_DATA_DIR", "")
    with pytest.raises(ConfigError, match="is empty") as caught:
        OmniLLM("echo")
    assert caught.value.field == "OMNI_JOBS_DATA_DIR"


@pytest.mark.parametrize("text", ["海是什么？", "ما هذا؟", "🖼️ e\u0301"])
def test_any_script_passes_unharmed(llm: OmniLLM, text: str) -> None:
    assert texts(llm.generate([text])) == [text]


def test_a_payload_reaches_the_second_stage(llm: OmniLLM) -> None:
    [output] = llm.generate([request("x", payload_bytes=100_000)])
    assert isinstance(output, OmniOutput)
    assert set(output.stages) == {"first", "second"}


def test_statistics_and_times_of_each_stage(llm: OmniLLM) -> None:
    before = llm.statistics()
    outputs = llm.generate([request(str(n), delay_s=0.1, payload_bytes=1000) for n in range(4)])
    after = llm.statistics()
    for stage in ("first", "second"):
        assert after[stage].runs - before[stage].runs == 4
        assert after[stage].failed == before[stage].failed
    assert after["first"].most_at_once >= 4
    assert after["first"].payload_bytes - before["first"].payload_bytes >= 4000
    for output in outputs:
        assert isinstance(output, OmniOutput)
        (begin, end), (next_begin, _) = output.times["first"], output.times["second"]
        assert 0 <= begin < end <= next_begin


def test_no_requests_no_results(llm: OmniLLM) -> None:
    assert llm.generate([]) == []


def test_a_bad_request_is_refused_before_any_runs(llm: OmniLLM) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.generate(["fine", {"messages": [], "heat": 3}])
    assert (caught.value.field or "").startswith("requests.1.")


def test_an_unknown_pipeline_names_the_known_ones() -> None:
    with pytest.raises(NotFound, match="unknown pipeline 'nope'"):
        OmniLLM("nope")


def test_one_that_fails_disturbs_no_other(tmp_path: Path) -> None:
    shipped = (Path(__file__).parents[3] / "stage_configs" / "echo.yaml").read_text(encoding="utf-8")
    (tmp_path / "echo.yaml").write_text(shipped.replace("time_limit_s: 60", "time_limit_s: 0.5"), encoding="utf-8")
    with OmniLLM("echo", settings=Settings(stage_configs=tmp_path)) as llm:
        results = llm.generate([request("late", delay_s=3000.0), "fine"])
    assert isinstance(results[0], TimeLimitExceeded)
    assert results[0].stage == "first"
    assert texts(results) == ["fine"]


def test_closing_twice_is_fine() -> None:
    llm = OmniLLM("echo")
    llm.close()
    llm.close()
