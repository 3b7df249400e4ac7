"""What is declared of components and processors is what the workers have, and is light to read."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name

import pytest

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.declarations import (
    COMPONENTS,
    PROCESSORS,
    PROMPTS,
    ComponentDeclaration,
    ProcessorDeclaration,
    components_of,
    processor,
)
from omni_jobs.pipelines.loader import load_pipeline
from tests.broken_graphs import BROKEN, GOOD, Broken
from tests.oracles.tinted import EXAMPLE, metadata
from workers.models import components
from workers.runners.diffusion.gpu_diffusion_worker import _LOADERS

ROOT = Path(__file__).parents[3]
OURS = ("chat", "thinker2talker", "talker2code2wav", "echo")


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
def test_every_declared_component_has_what_loads_it_and_the_other_way_round() -> None:
    loaders: dict[str, dict[str | None, str]] = {}
    for entry in entry_points(group=components.GROUP):
        loaders[entry.name] = dict.fromkeys(entry.load().components, "ar")
    for architecture, component in _LOADERS:
        loaders[architecture][component] = "diffusion"
    declared = {
        entry.name: {name: component.kind for name, component in components_of(entry.name).items()}
        for entry in entry_points(group=PROMPTS)
    }
    assert declared == loaders
    assert set(declared) == {"causal_lm", "qwen2_5_omni", "tinted"}


@pytest.mark.usefixtures("tinted")
@pytest.mark.parametrize("name", [*OURS, "tint", "tint_summary"])
def test_every_declared_processor_is_there(name: str) -> None:
    kind = resolve_name(processor(name).implementation)
    assert list(inspect.signature(kind).parameters) == ["stage", "model"]


def test_a_check_loads_nothing_heavy(tmp_path: Path) -> None:
    files = [*sorted((ROOT / "stage_configs").glob("*.yaml")), EXAMPLE / "tinted.yaml"]
    code = f"""
import sys
sys.path[:0] = [{str(metadata(tmp_path))!r}, {str(EXAMPLE)!r}]
from pathlib import Path
from omni_jobs.pipelines.loader import load_pipeline
for file in {[str(file) for file in files]}:
    load_pipeline(Path(file))
print(*sorted({{"torch", "vllm", "workers", "transformers", "tokenizers", "jinja2", "numpy"}} & set(sys.modules)))
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
        ("    inputs: {tint: hidden_states}\n", "", "input processor tint_summary needs an input of hidden_states"),
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


# Packages that declare nothing, or something else.


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            {COMPONENTS: "half = json:dumps"},
            "'half' of omni_jobs.components is no mapping of ComponentDeclaration",
        ),
        ({COMPONENTS: "half = nowhere.at_all:X"}, "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ({COMPONENTS: "half = json:nothing"}, "AttributeError: module 'json' has no attribute 'nothing'"),
        ({}, "architecture 'half' declares no components: its package needs an entry point in omni_jobs.components"),
    ],
)
def test_an_architecture_without_a_declaration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: dict[str, str], message: str
) -> None:
    prompts = {PROMPTS: "half = omni_jobs.prompts.causal_lm:CausalLmPromptRenderer"}
    monkeypatch.syspath_prepend(str(installed(tmp_path, prompts | entries)))
    path = tmp_path / "omni.yaml"
    path.write_text(GOOD.replace("architecture: qwen2_5_omni", "architecture: half"), encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_pipeline(path)
    assert (caught.value.line, caught.value.field) == (4, "model.architecture")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("half = omni_jobs.settings:Settings", "the entry point 'half' of omni_jobs.processors is no Processor"),
        ("half = nowhere:X", "omni_jobs.processors cannot be loaded: ModuleNotFoundError: No module"),
    ],
)
def test_a_processor_without_a_declaration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, message: str
) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path, {PROCESSORS: entry})))
    path = tmp_path / "omni.yaml"
    path.write_text(GOOD.replace("processor: chat", "processor: half"), encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_pipeline(path)
    assert (caught.value.line, caught.value.field) == (9, "stages.thinker.processor")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("colour = red", "NameError: name 'red' is not defined"),
        ("raise RuntimeError", "RuntimeError"),
        ("(", r"SyntaxError: '\(' was never closed"),
    ],
)
def test_a_declaration_whose_module_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path, {PROCESSORS: "half = broken_declarations:X"})))
    (tmp_path / "site" / "broken_declarations.py").write_text(code, encoding="utf-8")
    path = tmp_path / "omni.yaml"
    path.write_text(GOOD.replace("processor: chat", "processor: half"), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"'half' of omni_jobs.processors cannot be loaded: {problem}") as caught:
        load_pipeline(path)
    assert (caught.value.file, caught.value.line, caught.value.field) == (str(path), 9, "stages.thinker.processor")


def test_ours_cannot_be_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path, {PROCESSORS: "chat = json:dumps"})))
    assert isinstance(processor("chat"), ProcessorDeclaration)
    assert all(isinstance(component, ComponentDeclaration) for component in components_of("causal_lm").values())


def installed(directory: Path, entries: dict[str, str]) -> Path:
    """What installing a package with these entry points would leave."""
    found = directory / "site" / "half-0.1.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 0.1\n", encoding="utf-8")
    text = "".join(f"[{group}]\n{entry}\n" for group, entry in entries.items())
    (found / "entry_points.txt").write_text(text, encoding="utf-8")
    return found.parent
