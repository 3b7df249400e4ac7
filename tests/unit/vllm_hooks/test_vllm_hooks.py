"""Each name of vLLM that may move: an upgrade that moves one fails here, readably."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import workers
from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.declarations import FAMILIES, family
from omni_jobs.pipelines.plugins import names
from workers.models.qwen2_5_omni.family import TALKER_MODEL
from workers.runners.ar.gpu_ar_model_runner import GPUARModelRunner
from workers.runners.ar.gpu_ar_worker import GPUARWorker
from workers.vllm_hooks import hooks
from workers.vllm_hooks.hooks import HOOKS, Hook, check_hooks, moved_hooks


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.label)
def test_hook_is_where_we_know_it(hook: Hook) -> None:
    assert moved_hooks([hook]) == []


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (Hook("vllm.gone:Thing", "x"), "vllm.gone:Thing is gone"),
        (Hook("vllm.lora.ops.torch_ops.lora_ops", "nothing"), "vllm.lora.ops.torch_ops.lora_ops.nothing is gone"),
        (
            Hook("vllm.lora.ops.torch_ops.lora_ops", "bgmv_expand", ("a",)),
            "vllm.lora.ops.torch_ops.lora_ops.bgmv_expand takes ('inputs', 'lora_b_weights', 'output_tensor', "
            "'lora_indices_tensor', 'add_inputs'), not ('a',)",
        ),
        (
            Hook("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "_nothing"),
            "vllm.v1.worker.gpu_model_runner:GPUModelRunner._nothing is gone",
        ),
        (
            Hook("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "_update_states", ("a", "b")),
            "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states takes ('scheduler_output',), not ('a', 'b')",
        ),
        (
            Hook("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "_nothing", used_in="_update_states"),
            "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states no longer uses self._nothing",
        ),
    ],
)
def test_a_moved_hook_is_named(hook: Hook, message: str) -> None:
    assert moved_hooks([hook]) == [message]


def test_check_hooks_names_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "moved_hooks", lambda: ["a is gone", "b is gone"])
    with pytest.raises(ConfigError, match="a is gone; b is gone"):
        check_hooks()


def test_register_is_an_entry_point_and_registers_our_models() -> None:
    from importlib.metadata import entry_points

    from vllm import ModelRegistry

    (plugin,) = entry_points(group="vllm.general_plugins", name="omni_jobs")
    plugin.load()()
    ours = {name for each in names(FAMILIES) for name in family(each).vllm_models}
    assert TALKER_MODEL in ours
    assert ours <= set(ModelRegistry.get_supported_archs())


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_process_of_another_program_is_left_alone(method: str) -> None:
    """Its parent is no engine of ours, may be a thread that ends, and for a fork server is not the process above."""
    script = f"""
import multiprocessing, threading
from workers.vllm_hooks import end_with_engine
process = multiprocessing.get_context({method!r}).Process(target=end_with_engine)
starting = threading.Thread(target=process.start)
starting.start()
starting.join()
process.join()
raise SystemExit(process.exitcode)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == 0


def test_the_docs_have_a_line_for_each_hook() -> None:
    """With what vLLM's V2 model runner has in its place."""
    page = (Path(workers.__file__).parents[1] / "docs" / "vllm-hooks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    told = [label for labels in rows for label in re.findall(r"`([^`]+)`", labels)]
    assert sorted(told) == sorted({hook.label for hook in HOOKS})


@pytest.mark.parametrize("ours", [GPUARModelRunner, GPUARWorker], ids=lambda ours: ours.__name__)
def test_every_method_that_our_classes_override_is_a_hook(ours: type) -> None:
    of_vllm = [each for each in ours.__mro__ if each.__module__.startswith("vllm.")]
    overridden = {
        name
        for each in ours.__mro__
        if each.__module__.startswith("workers.")
        for name, value in vars(each).items()
        if callable(value) and any(name in vars(other) for other in of_vllm)
    }
    assert overridden == {hook.name for hook in HOOKS if hook.owner in OWNERS[ours] and hook.parameters is not None}


OWNERS = {
    GPUARModelRunner: {"vllm.v1.worker.gpu_model_runner:GPUModelRunner"},
    GPUARWorker: {"vllm.v1.worker.gpu_worker:Worker", "vllm.v1.worker.cpu_worker:CPUWorker"},
}


def test_only_vllm_hooks_and_models_import_vllm_internals() -> None:
    """The runners see vLLM through workers.vllm_hooks; model classes use its model library."""
    root = Path(workers.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        place = path.relative_to(root).parts[0]
        if place in ("vllm_hooks", "models"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [f"{path.name}: {name}" for name in names if name.startswith("vllm.") and name not in PUBLIC]
    assert found == []


PUBLIC = {"vllm.sampling_params"}
