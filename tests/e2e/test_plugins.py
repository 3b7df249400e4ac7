"""Packages from outside run through the whole stack with no change of ours, and a broken one stops itself alone."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx2
import pytest
from PIL import Image

from omni_jobs.client import Client, user_message
from omni_jobs.errors import InvalidRequest, PluginBroken
from omni_jobs.pipelines.declarations import family, runner
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView
from tests.e2e.plugins import install, on_the_path, write_stage_configs
from workers.offline import OmniLLM, OmniOutput

pytestmark = pytest.mark.timeout(600)

SVG = "{http://www.w3.org/2000/svg}"
SERVED = ("pastel", "plotter", "liar")
WHY = "the entry point 'half' of omni_jobs.families cannot be loaded: ImportError: libhalf.so.1"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, tiny_causal_lm: Path) -> Iterator[Settings]:
    """Packages and stage configs in place, for this process and its children."""
    directory = tmp_path_factory.mktemp("plugins")
    site = install(directory)
    checkpoint, base_model = directory / "checkpoint", directory / "base_model"
    shutil.copytree(tiny_causal_lm, base_model, ignore=shutil.ignore_patterns("chat_template*"))
    with on_the_path(site):
        subprocess.run([sys.executable, "-m", family("pastel").tiny_checkpoint or "", checkpoint], check=True)
        yield Settings(
            data_dir=directory / "data",
            stage_configs=write_stage_configs(directory / "stage_configs"),
            models={"pastel": checkpoint, "liar": checkpoint, "half": checkpoint, "questions": base_model},
            spool_dir=directory / "spool",
            progress_every_s=0.05,
            device="cpu",
        )


@pytest.fixture(scope="module")
def stack(settings: Settings) -> Iterator[EmbeddedStack]:
    with EmbeddedStack(settings, pipelines=SERVED) as started:
        yield started


@pytest.fixture(scope="module")
def client(stack: EmbeddedStack) -> Iterator[Client]:
    with Client(stack.url) as found:
        yield found


@pytest.fixture(scope="module")
def replica(stack: EmbeddedStack) -> Iterator[Client]:
    """A client of another API server on the same database, which serves all pipelines, the broken one too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # clients wait in its backlog until it serves
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
        environment |= stack.settings.model_copy(update={"pipelines": None}).to_environment()
        command = [sys.executable, "-m", "omni_jobs.cli", "api", "--fd", str(listener.fileno())]
        process = subprocess.Popen(command, env=environment, pass_fds=(listener.fileno(),))
        try:
            with Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=120) as found:
                yield found
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) in (0, -signal.SIGTERM)


def drawn(text: str, seed: int, **parameters: Any) -> dict[str, Any]:
    stages = {"draw": parameters} if parameters else {}
    return {"messages": [{"role": "user", "content": text}], "modalities": ["image"], "seed": seed, "stages": stages}


def plotted(title: str, seed: int = 1, **parameters: Any) -> dict[str, Any]:
    stages = {"plot": parameters} if parameters else {}
    return {"messages": [{"role": "user", "content": title}], "modalities": ["svg"], "seed": seed, "stages": stages}


def ended(client: Client, pipeline: str, request: dict[str, Any]) -> JobView:
    return client.wait(client.submit({"model": pipeline, **request}).id, timeout=120)


Picture = tuple[tuple[int, int], bytes]
"""Width and height, and the bytes of the pixels."""


def picture(client: Client, job: JobView) -> Picture:
    """Return a job's picture, once it is checked that the file tells its seed."""
    assert job.status is JobState.COMPLETED, job.error
    assert [(each.name, each.media_type) for each in job.artifacts] == [("image.png", "image/png")]
    with Image.open(BytesIO(client.artifact(job, "image.png"))) as image:
        image.load()
        assert image.text == {"Software": "omni-jobs", "seed": str(job.seed)}  # type: ignore[attr-defined]
        return image.size, image.tobytes()


# A diffusion model.


def test_a_diffusion_model_of_ones_own_draws_what_it_draws_offline(client: Client, settings: Settings) -> None:
    """Pictures of two sizes and several guidances, all at once; offline each is alone, and equal to the last bit."""
    requests = [drawn(f"a lighthouse, {n}", seed=n, guidance_scale=float(n)) for n in range(5)]
    requests += [drawn("a lighthouse, 0", seed=7), drawn("用一句话 🎨", seed=2**63 - 1, width=40, height=24, steps=3)]
    jobs = [client.submit({"model": "pastel", **request}) for request in requests]
    found = [picture(client, client.wait(job.id, timeout=120)) for job in jobs]
    assert [size for size, _ in found] == [(64, 64)] * 6 + [(40, 24)]
    with OmniLLM("pastel", settings=settings) as llm:
        alone = [llm.generate([request])[0] for request in requests]
        assert [image_of(each) for each in alone] == found
        assert len(set(found)) == len(found)
        # At a guidance of 0 a text says nothing; a seed and the number of steps always do.
        silent = [drawn("night", 1, guidance_scale=0.0), drawn("day", 1, guidance_scale=0.0)]
        others = [drawn("night", 2, guidance_scale=0.0), drawn("night", 1, guidance_scale=0.0, steps=9)]
        first, second, third, fourth = map(image_of, llm.generate([*silent, *others]))
    assert first == second
    assert len({first, third, fourth}) == 3


def image_of(output: object) -> Picture:
    assert isinstance(output, OmniOutput)
    with Image.open(BytesIO(output.artifacts["image.png"].data)) as image:
        return image.size, image.tobytes()


def test_a_job_that_asks_shows_previews_while_it_runs(client: Client) -> None:
    request = {**drawn("a lighthouse", 1, width=512, height=512, steps=1000), "previews": True}
    shown = set[str]()

    def look(job: JobView) -> None:
        shown.update(stage.progress.picture for stage in job.stages if stage.progress and stage.progress.picture)

    job = client.wait(client.submit({"model": "pastel", **request}).id, timeout=120, on_update=look)
    picture(client, job)
    assert shown
    assert Image.open(BytesIO(b64decode(shown.pop().removeprefix("data:image/jpeg;base64,")))).size == (64, 64)
    assert job.stages[0].progress is None or job.stages[0].progress.picture is None


def test_a_job_may_ask_for_another_format(client: Client) -> None:
    job = ended(client, "pastel", {**drawn("a lighthouse", 1), "image": {"format": "webp"}})
    assert Image.open(BytesIO(client.artifact(job, "image.webp"))).format == "WEBP"


@pytest.mark.parametrize(
    ("parameters", "field"),
    [({"width": 20}, "stages.draw.width"), ({"steps": 0}, "stages.draw.steps"), ({"hue": 1}, "stages.draw.hue")],
)
def test_the_api_checks_the_models_own_parameters(client: Client, parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.submit({"model": "pastel", **drawn("a lighthouse", 1, **parameters)})
    assert caught.value.field == field


def test_what_the_model_cannot_take_fails_that_job_alone(client: Client) -> None:
    jobs = [client.submit({"model": "pastel", **drawn(text, 1)}) for text in ("x" * 2001, " ", "a lighthouse")]
    long, blank, good = (client.wait(job.id, timeout=120) for job in jobs)
    assert good.status is JobState.COMPLETED, good.error
    for job, field in ((long, "text"), (blank, "messages")):
        assert job.error is not None
        assert (job.error.code, job.error.stage, job.error.field) == ("model_error", "draw", field)


def test_a_model_whose_output_breaks_its_flow_fails_that_job_alone(client: Client, stack: EmbeddedStack) -> None:
    worker = next(child for child in stack.children() if child.name == "worker liar.draw")
    lie, truth = (client.submit({"model": "liar", **drawn("so it is", 1, width=width)}) for width in (24, 32))
    error = client.wait(lie.id, timeout=120).error
    assert error is not None
    assert (error.code, error.stage, error.field) == ("model_error", "draw", "tensors.pixels.dtype")
    assert error.message == "the output is no pixels: F32, not U8"
    picture(client, client.wait(truth.id, timeout=120))
    picture(client, ended(client, "liar", drawn("so it is", 1)))
    assert next(child for child in stack.children() if child.name == worker.name).pid == worker.pid


# A runner, with a flow and an output.


def test_a_runner_of_ones_own_makes_an_output_of_its_own(client: Client, settings: Settings) -> None:
    job = ended(client, "plotter", plotted("Wheels & <pens>", seed=3, points=1201))
    assert job.status is JobState.COMPLETED, job.error
    assert [(each.name, each.media_type) for each in job.artifacts] == [("drawing.svg", "image/svg+xml")]
    data = client.artifact(job, "drawing.svg")
    root = ElementTree.fromstring(data.decode())
    assert root.findtext(f"{SVG}title") == "Wheels & <pens>"
    line = root.find(f"{SVG}polyline")
    assert line is not None
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == 1201
    assert points[0] == pytest.approx(points[-1], abs=1e-3), "the curve is closed"
    assert max(x * x + y * y for x, y in points) < 1
    with OmniLLM("plotter", settings=settings) as llm:
        same, other = llm.generate([plotted("Wheels & <pens>", seed=seed, points=1201) for seed in (3, 4)])
    assert isinstance(same, OmniOutput)
    assert isinstance(other, OmniOutput)
    assert same.artifacts["drawing.svg"].data == data != other.artifacts["drawing.svg"].data


def test_what_it_makes_is_shown(client: Client) -> None:
    shown = next(pipeline for pipeline in client.pipelines() if pipeline.name == "plotter")
    [output] = shown.outputs
    assert (output.modality, output.stage, output.flow) == ("svg", "plot", "curve")
    assert [(each.name, each.media_type, each.artifact) for each in output.formats] == [
        ("svg", "image/svg+xml", "drawing.svg")
    ]
    [stage] = shown.stages
    assert stage.parameters["points"] == 2000


def test_its_jobs_report_and_wait_and_are_cancelled(client: Client) -> None:
    """Four of five draw, because a plotter has four pens. A cancel ends one within a second, and frees its pen."""
    slow = {"points": 100_000, "points_per_s": 5000.0}
    jobs = [client.submit({"model": "plotter", **plotted(f"{n}", **slow)}) for n in range(5)]
    until(lambda: [unit_of(client, job) for job in jobs] == ["points"] * 4 + ["waiting"])
    begun = time.monotonic()
    client.cancel(jobs[0].id)
    assert client.wait(jobs[0].id, timeout=30).status is JobState.CANCELLED
    assert time.monotonic() - begun < 15  # its drawing would take 20 s
    until(lambda: unit_of(client, jobs[4]) == "points")
    for job in jobs[1:]:
        client.cancel(job.id)
    assert {client.wait(job.id, timeout=30).status for job in jobs} == {JobState.CANCELLED}
    assert ended(client, "plotter", plotted("afterwards")).status is JobState.COMPLETED


def unit_of(client: Client, job: JobView) -> str | None:
    progress = client.get(job.id).stages[0].progress
    return None if progress is None else progress.unit


def until(true: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_the_runner_cannot_draw_fails_that_job_alone(client: Client) -> None:
    job = ended(client, "plotter", plotted("too large", inner=96, outer=96))
    assert job.error is not None
    assert (job.error.code, job.error.stage, job.error.field) == ("model_error", "plot", "inner")


# Prompts.


@pytest.fixture
def questions(settings: Settings, tmp_path: Path) -> Iterator[Client]:
    """A client of a stack that serves the questions alone: its engine takes half a minute."""
    mine = settings.model_copy(update={"data_dir": tmp_path / "data", "spool_dir": tmp_path / "spool"})
    with EmbeddedStack(mine, pipelines=["questions"]) as started, Client(started.url) as found:
        yield found


@pytest.mark.long
def test_prompts_of_ones_own_for_a_causal_language_model(questions: Client, settings: Settings) -> None:
    """A checkpoint without a chat template answers as Transformers continues the list of questions."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    turns = [("system", "Be brief."), ("user", "Who?"), ("assistant", "Me."), ("user", "用一句话介绍灯塔。")]
    messages = [{"role": role, "content": content} for role, content in turns]
    asked = {"stages": {"answer": {"max_tokens": 24}}, "return_token_ids": True}
    with pytest.raises(InvalidRequest, match=r"contains <\|im_end\|>"):
        questions.submit({"model": "questions", "messages": [user_message("Hi<|im_end|>")]})
    jobs = [questions.submit({"model": "questions", "messages": part, **asked}) for part in (messages, messages[1:2])]
    long, short = (questions.wait(job.id, timeout=120) for job in jobs)
    tokenizer = AutoTokenizer.from_pretrained(settings.models["questions"])
    model = AutoModelForCausalLM.from_pretrained(settings.models["questions"]).eval()
    for job, prompt in (
        (long, "Task: Be brief.\nQuestion: Who?\nAnswer: Me.\nQuestion: 用一句话介绍灯塔。\nAnswer:"),
        (short, "Question: Who?\nAnswer:"),
    ):
        assert job.status is JobState.COMPLETED, job.error
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        expected = model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :].tolist()
        result = job.result or {}
        assert result["usage"]["answer"]["prompt_tokens"] == ids.shape[1]
        assert result["token_ids"]["answer"] == expected


# A family whose import fails.


def test_a_broken_family_is_named_and_the_others_live(replica: Client, settings: Settings) -> None:
    file = settings.resolved_stage_configs / "half.yaml"
    answer = httpx2.get(f"{replica.base_url}/readyz", timeout=120, trust_env=False)
    ready = answer.json()
    assert (answer.status_code, ready["status"]) == (200, "degraded")
    assert {name for name, check in ready["pipelines"].items() if check["ok"]} == {*SERVED, "questions"}
    error = ready["pipelines"]["half"]["error"]
    assert (error["code"], error["field"]) == ("plugin_broken", "model.family")
    assert error["message"].startswith(f"{file}:5: model.family: {WHY}")
    assert ended(replica, "plotter", plotted("all is well")).status is JobState.COMPLETED


def test_its_jobs_are_refused(replica: Client) -> None:
    body = {"model": "half", **drawn("nothing", 1)}
    answer = httpx2.post(f"{replica.base_url}/v1/jobs", json=body, timeout=60, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "plugin_broken")
    with pytest.raises(PluginBroken, match=WHY):
        replica.submit(body)
    shown = next(pipeline for pipeline in replica.pipelines() if pipeline.name == "half")
    assert shown.trouble is not None
    assert shown.trouble.code == "plugin_broken"


def test_its_workers_are_not_started(settings: Settings, tmp_path: Path) -> None:
    mine = settings.model_copy(update={"data_dir": tmp_path})
    told: list[str] = []
    assert EmbeddedStack(mine, pipelines=["pastel", "half"], on_notice=told.append).served == ["pastel"]
    assert len(told) == 1
    assert WHY in told[0]
    with pytest.raises(PluginBroken, match=WHY) as caught:
        EmbeddedStack(mine, pipelines=["half"])
    assert (caught.value.line, caught.value.field) == (5, "model.family")


def test_a_check_names_file_line_and_field(settings: Settings) -> None:
    files = [settings.resolved_stage_configs / f"{name}.yaml" for name in ("half", *SERVED)]
    command = [sys.executable, "-m", "omni_jobs.cli", "pipelines", "check", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    broken = settings.resolved_stage_configs / "half.yaml"
    assert done.stderr.splitlines() == [f"{broken}:5: model.family: {WHY}: cannot open shared object file"]
    assert [line.split(": ")[1:3] for line in done.stdout.splitlines()] == [
        ["ok", f"{name} 1, {stage}, digest {line.split()[-1]}"]
        for line, (name, stage) in zip(
            done.stdout.splitlines(),
            (("pastel", "draw"), ("plotter", "plot"), ("liar", "draw")),
            strict=True,
        )
    ]


# What the API reads of a package is light.


def test_a_package_is_light_until_a_worker_runs_it(settings: Settings) -> None:
    """Declarations, parameters, prompts and input processors import no torch."""
    light = [
        *(each.implementation for each in family("pastel").processors.values()),
        *(each.implementation for each in runner("plotter").processors.values()),
        family("questions").prompts,
    ]
    served = (*SERVED, "questions")
    code = f"""
import json, sys
from pathlib import Path
from pkgutil import resolve_name
from omni_jobs.pipelines.loader import load_pipelines
for pipeline in load_pipelines(Path({str(settings.resolved_stage_configs)!r})).served({served!r}).values():
    pipeline.digest
for path in {light!r}:
    resolve_name(path)
print(json.dumps(sorted({{"torch", "vllm", "transformers"}} & set(sys.modules))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == []
