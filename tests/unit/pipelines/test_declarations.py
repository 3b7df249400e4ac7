"""What is declared of components and processors is what the workers have, and is light to read."""

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from omni_jobs.errors import ConfigError, NotFound, PluginBroken
from omni_jobs.pipelines import plugins
from omni_jobs.pipelines.declarations import FAMILIES, RUNNERS, family, runner
from omni_jobs.pipelines.engine_settings import EngineSettings
from omni_jobs.pipelines.loader import load_pipeline, load_pipelines
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.plugins import check_there, named_class, names
from tests.broken_graphs import BROKEN, GOOD, Broken
from tests.oracles.tinted import EXAMPLE, metadata

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "vllm", "transformers", "tokenizers", "numpy", "av", "onnxruntime", "faster_whisper", "ctranslate2"}


@pytest.fixture
def tinted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example model, as if installed."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(metadata(tmp_path / "site")))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "tinted":
            del sys.modules[name]


@pytest.mark.usefixtures("tinted")
def test_everything_that_a_family_names_is_there() -> None:
    assert {"causal_lm", "qwen2_5_omni", "tinted"} <= set(names(FAMILIES))
    for name in names(FAMILIES):
        declared = family(name)
        for component in declared.components.values():
            assert component.runner in names(RUNNERS)
            assert component.implementation is None or resolve_name(component.implementation)
            assert component.parameters is None or named_class(component.parameters, StageParameters)
        for path in (declared.prompts, *declared.vllm_models.values()):
            assert path is None or isinstance(resolve_name(path), type)
        if declared.tiny_checkpoint is not None:
            assert callable(resolve_name(declared.tiny_checkpoint).build_tiny_checkpoint)
        for processor in declared.processors.values():
            assert processor.runner in names(RUNNERS)
            assert list(inspect.signature(resolve_name(processor.implementation)).parameters) == ["stage", "model"]


def test_everything_that_a_runner_names_is_there() -> None:
    assert {"ar", "diffusion", "echo"} <= set(names(RUNNERS))
    for name in names(RUNNERS):
        declared = runner(name)
        kind = resolve_name(declared.implementation)
        assert list(inspect.signature(kind).parameters) == ["args"]
        assert all(hasattr(kind, method) for method in ("start", "run", "close", "healthy"))
        assert named_class(declared.engine, EngineSettings)
        assert declared.parameters is None or named_class(declared.parameters, StageParameters)
        for processor in declared.processors.values():
            assert processor.runner == name
            assert list(inspect.signature(resolve_name(processor.implementation)).parameters) == ["stage", "model"]


def test_a_check_loads_nothing_heavy(tmp_path: Path) -> None:
    files = [*sorted((ROOT / "stage_configs").glob("*.yaml")), EXAMPLE / "tinted.yaml"]
    code = f"""
import sys
sys.path[:0] = [{str(metadata(tmp_path))!r}, {str(EXAMPLE)!r}]
from pathlib import Path
from omni_jobs.pipelines.loader import load_pipeline
for file in {[str(file) for file in files]}:
    load_pipeline(Path(file)).digest
print(*sorted({HEAVY | {"jinja2"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# Graphs that do not fit.


def test_the_graph_that_the_others_are_made_of_is_right(tmp_path: Path) -> None:
    (tmp_path / "omni.yaml").write_text(GOOD, encoding="utf-8")
    assert list(load_pipeline(tmp_path / "omni.yaml").stages) == ["thinker", "talker", "code2wav"]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_graph_that_no_worker_can_run_is_refused(tmp_path: Path, broken: Broken) -> None:
    path = tmp_path / "omni.yaml"
    path.write_text(broken.text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_pipeline(path)
    error = caught.value
    assert (error.file, error.line, error.field, error.message) == (
        str(path), broken.line, broken.field, broken.message,
    )  # fmt: skip


@pytest.mark.usefixtures("tinted")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    inputs: {tint: tinted_states}\n", "", "input processor tint_summary needs an input of tinted_states"),
        ("processor: tint\n", "processor: tint_summary\n", "tint_summary makes input for echo stages, not ar"),
        ("    kind: ar\n", "    kind: ar\n    component: tint\n", "its checkpoint is run whole"),
    ],
)
def test_the_graph_of_a_model_from_outside(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (EXAMPLE / "tinted.yaml").read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = tmp_path / "tinted.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_pipeline(path)
    assert caught.value.line is not None


# Packages whose plug-ins are broken.


def check_broken(tmp_path: Path, old: str, new: str, message: str, line: int, field: str) -> None:
    """The file is refused, and beside others its pipeline stays, with the reason, so that the others live."""
    path = tmp_path / "omni.yaml"
    path.write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(PluginBroken, match=message) as caught:
        load_pipeline(path)
    assert (caught.value.file, caught.value.line, caught.value.field) == (str(path), line, field)
    (tmp_path / "echo.yaml").write_bytes((ROOT / "stage_configs" / "echo.yaml").read_bytes())
    pipelines = load_pipelines(tmp_path)
    assert set(pipelines) == {"echo", "omni"}
    assert pipelines.named("echo").digest
    assert str(pipelines.broken("omni")) == str(pipelines.refusal(pipelines["omni"])) == str(caught.value)
    with pytest.raises(PluginBroken, match=message) as refused:
        pipelines.named("omni")
    assert str(refused.value) == str(caught.value)
    assert refused.value is not pipelines.broken("omni"), "an error that is kept would collect the frames of all raises"
    others = pipelines.served(["echo"])
    assert others.broken("omni") is None
    with pytest.raises(NotFound):
        others.named("omni")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("json:dumps", "the entry point 'half' of omni_jobs.families is no Family"),
        ("omni_jobs.pipelines.declarations:Family", "the entry point 'half' of omni_jobs.families is no Family"),
        ("nowhere.at_all:X", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("json:nothing", "AttributeError: module 'json' has no attribute 'nothing'"),
    ],
)
def test_a_broken_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path, {FAMILIES: f"half = {value}"})))
    check_broken(tmp_path, "family: qwen2_5_omni", "family: half", message, 4, "model.family")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("omni_jobs.settings:Settings", "the entry point 'half' of omni_jobs.runners is no RunnerDeclaration"),
        ("nowhere:X", "'half' of omni_jobs.runners cannot be loaded: ModuleNotFoundError: No module"),
    ],
)
def test_a_broken_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path, {RUNNERS: f"half = {value}"})))
    check_broken(tmp_path, "kind: diffusion", "kind: half", message, 18, "stages.code2wav.kind")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("colour = red", "NameError: name 'red' is not defined"),
        ("raise RuntimeError", "RuntimeError"),
        ("import sys; sys.exit('no licence')", "SystemExit: no licence"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("class Skipped(BaseException): ...\nraise Skipped('no GPU')", "Skipped: no GPU"),
        ("import broken_family.part", "ModuleNotFoundError: No module named 'broken_family.part'"),
        ("def f(): f()\nf()", "RecursionError"),
        ("(", r"SyntaxError: '\(' was never closed"),
    ],
)
def test_a_family_whose_module_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path, {FAMILIES: "half = broken_family:X"})))
    (tmp_path / "site" / "broken_family.py").write_text(code, encoding="utf-8")
    message = f"'half' of omni_jobs.families cannot be loaded: {problem}"
    check_broken(tmp_path, "family: qwen2_5_omni", "family: half", message, 4, "model.family")


def test_a_family_whose_import_hangs_stops_its_pipeline_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "IMPORT_LIMIT_S", 0.5)
    monkeypatch.syspath_prepend(str(installed(tmp_path, {FAMILIES: "half = hanging_family:X"})))
    (tmp_path / "site" / "hanging_family.py").write_text("import threading\nthreading.Event().wait()", encoding="utf-8")
    message = "'half' of omni_jobs.families cannot be loaded: TimeoutError: its import has not ended within 0.5 s"
    check_broken(tmp_path, "family: qwen2_5_omni", "family: half", message, 4, "model.family")


def test_a_package_that_loads_its_own_plug_in_while_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread would wait for the package, and the package for the thread."""
    monkeypatch.syspath_prepend(str(installed(tmp_path, {FAMILIES: "early = early_package.family:FAMILY"})))
    package = tmp_path / "site" / "early_package"
    package.mkdir()
    (package / "family.py").write_text(
        "from omni_jobs.pipelines.declarations import Family\nFAMILY = Family({})\n", encoding="utf-8"
    )
    (package / "__init__.py").write_text(
        "from omni_jobs.pipelines.declarations import family\nFOUND = family('early')\n", encoding="utf-8"
    )
    assert family("early") == importlib.import_module("early_package").FOUND


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "glm_image.yaml",
            "processor: text2tokens\n",
            "processor: chat\n",
            "input processor chat reads ArParameters, and the stage has GenerateParameters",
        ),
        (
            "speech.yaml",
            "processor: features2wave\n",
            "processor: say\n",
            "input processor say reads AcousticParameters, and the stage has VocoderParameters",
        ),
    ],
)
def test_a_processor_reads_the_parameters_of_its_stage(
    tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    """Its line is one of the mistakes, and no job has to find it."""
    text = (ROOT / "stage_configs" / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (tmp_path / file).write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_pipeline(tmp_path / file)
    found = {(mistake.field, mistake.message) for mistake in (caught.value, *caught.value.more)}
    assert [field for field, said in found if said == message], found


def test_a_processor_chooses_the_parameters_of_a_stage_without_a_component() -> None:
    stages = load_pipeline(ROOT / "stage_configs" / "echo_media.yaml").stages
    assert {name: stage.parameters_type.__name__ for name, stage in stages.items()} == {
        "answer": "AnswerParameters",
        "sound": "ToneParameters",
        "picture": "BarsParameters",
        "video": "MovingBarsParameters",
    }
    echo = load_pipeline(ROOT / "stage_configs" / "echo.yaml").stage("first")
    assert echo.parameters_type.__name__ == "EchoParameters"


def test_a_processor_says_for_itself_whether_it_needs_a_thread() -> None:
    stages = load_pipeline(ROOT / "stage_configs" / "echo_media.yaml").stages
    assert [stage.blocking_prompts for stage in stages.values()] == [True, False, True, True]
    assert not load_pipeline(ROOT / "stage_configs" / "echo.yaml").stage("first").blocking_prompts
    assert load_pipeline(ROOT / "stage_configs" / "upscale.yaml").stage("enlarge").blocking_prompts


def test_a_processor_makes_no_other_flow_than_its_own(tmp_path: Path) -> None:
    text = (ROOT / "stage_configs" / "echo_media.yaml").read_text(encoding="utf-8")
    (tmp_path / "echo_media.yaml").write_text(text.replace("produces: waveform", "produces: bytes"), encoding="utf-8")
    with pytest.raises(ConfigError, match="the input processor tone makes waveform, not bytes") as caught:
        load_pipeline(tmp_path / "echo_media.yaml")
    assert caught.value.field == "stages.sound.produces"


def test_a_missing_family_stops_its_pipeline_alone(tmp_path: Path) -> None:
    message = "no such plug-in 'gone' of omni_jobs.families is installed; known: causal_lm, "
    check_broken(tmp_path, "family: qwen2_5_omni", "family: gone", message, 4, "model.family")


def test_a_missing_runner_flow_and_output_stop_their_pipeline_alone(tmp_path: Path) -> None:
    for number, (old, new, line, field) in enumerate(
        (
            ("kind: diffusion", "kind: gone", 18, "stages.code2wav.kind"),
            ("produces: waveform", "produces: gone", 22, "stages.code2wav.produces"),
            ("  text: {stage: thinker}", "  gone: {stage: thinker}", 24, "outputs.gone"),
        )
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        check_broken(directory, old, new, r"no such (plug-in|flow) 'gone'", line, field)


PARTS = """
from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration, RunnerDeclaration
FAMILY = Family(
    {"thinker": ComponentDeclaration("ar", frozenset({"hidden_states"}), implementation=%(component)r)},
    prompts=%(prompts)r,
    processors={"chat": ProcessorDeclaration(%(processor)r, "ar")},
)
"""
THERE = dict.fromkeys(("component", "prompts", "processor"), "half_parts:Part")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nowhere:Part", "there is no module 'nowhere'"),
        ("half_parts.inner:Part", "there is no module 'half_parts.inner'"),
        ("half_parts:Other", "module 'half_parts' has no 'Other'"),
        ("half_wrong:Part", "SyntaxError: '\\(' was never closed"),
        (" :Part", "there is no module ' '"),
    ],
)
@pytest.mark.parametrize(
    ("part", "line", "field"),
    [
        ("component", 8, "stages.thinker.component"),
        ("prompts", 4, "model.family"),
        ("processor", 9, "stages.thinker.processor"),
    ],
)
def test_a_missing_implementation_stops_its_pipeline_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, line: int, field: str, path: str, problem: str
) -> None:
    site = installed(tmp_path, {FAMILIES: "half = half_declaration:FAMILY"})
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "half_declaration", raising=False)
    check_there.cache_clear()
    (site / "half_declaration.py").write_text(PARTS % {**THERE, part: path}, encoding="utf-8")
    (site / "half_parts.py").write_text("raise RuntimeError('imported')\nclass Part: ...\n", encoding="utf-8")
    (site / "half_wrong.py").write_text("class Part(", encoding="utf-8")
    check_broken(tmp_path, "family: qwen2_5_omni", "family: half", f"cannot be loaded: {problem}", line, field)


HALF = """
from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration, RunnerDeclaration
FAMILY = Family({"thinker": ComponentDeclaration("ar", frozenset({"hidden_states"}), parameters="json:JSONDecoder")})
RUNNER = RunnerDeclaration("json:JSONDecoder", engine="json:JSONDecoder", parameters="nowhere:X")
"""


@pytest.mark.parametrize(
    ("old", "new", "message", "line", "field"),
    [
        (
            "family: qwen2_5_omni", "family: half",
            "'json:JSONDecoder' is no StageParameters", 6, "stages.thinker.parameters",
        ),
    ],
)  # fmt: skip
def test_a_declaration_that_names_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str, line: int, field: str
) -> None:
    entries = {FAMILIES: "half = half_family:FAMILY", RUNNERS: "half = half_family:RUNNER"}
    monkeypatch.syspath_prepend(str(installed(tmp_path, entries)))
    (tmp_path / "site" / "half_family.py").write_text(HALF, encoding="utf-8")
    path = tmp_path / "omni.yaml"
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_pipeline(path)
    assert (caught.value.file, caught.value.line, caught.value.field) == (str(path), line, field)
    sys.modules.pop("half_family", None)


def test_two_plug_ins_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path, {FAMILIES: "qwen2_5_omni = json:dumps"})))
    message = "the entry point 'qwen2_5_omni' of omni_jobs.families stands in several packages: json:dumps and workers"
    check_broken(tmp_path, "family: qwen2_5_omni", "family: qwen2_5_omni ", message, 4, "model.family")


def installed(directory: Path, entries: dict[str, str]) -> Path:
    """What installing a package with these entry points would leave."""
    found = directory / "site" / "half-0.1.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 0.1\n", encoding="utf-8")
    text = "".join(f"[{group}]\n{entry}\n" for group, entry in entries.items())
    (found / "entry_points.txt").write_text(text, encoding="utf-8")
    return found.parent
