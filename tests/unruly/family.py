"""``UNRULY``, the family of the tinted Llama whose methods misbehave, and ``misbehaving``, which asks them to.

A method reads what it does from the file of its name, because it runs in a process of the engine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family
from workers.runners.ar.component import ArComponent
from workers.runners.pooling.component import PoolingComponent

DIRECTORY = "OMNI_TESTS_UNRULY"
"""The environment variable with the directory of the files."""

HANG = "hang"
"""What a method does that does not return as long as its file is there; all others are names of exceptions."""

CULPRIT = 5
"""The length in tokens of the only prompts over which a method of one request misbehaves."""

CONTEXT = 4096

LONG_S = 0.5
"""How long the model takes for a prompt of ``CONTEXT`` tokens at least, on any machine: it sleeps."""

_OVERRIDES = {"architectures": ["UnrulyLlama"], "max_position_embeddings": CONTEXT}

AR = ArComponent(engine_args={"hf_overrides": _OVERRIDES, "enable_prompt_embeds": True})
POOLING = PoolingComponent(engine_args={"hf_overrides": _OVERRIDES})

UNRULY = Family(
    components={
        None: ComponentDeclaration("ar", produces=frozenset({"text"}), implementation=f"{__name__}:AR"),
        "encoder": ComponentDeclaration(
            "pooling", produces=frozenset({"embeds"}), implementation=f"{__name__}:POOLING"
        ),
    },
    vllm_models={"UnrulyLlama": "tests.unruly.model:UnrulyLlama"},
)


def installed(directory: Path) -> Path:
    """What installing the family would leave: a directory for ``sys.path``."""
    found = directory / "unruly-1.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: unruly\nVersion: 1\n", encoding="utf-8")
    entry = f"[omni_jobs.families]\nunruly = {__name__}:UNRULY\n"
    (found / "entry_points.txt").write_text(entry, encoding="utf-8")
    return directory


@contextmanager
def misbehaving(directory: Path, method: str, how: str) -> Iterator[None]:
    """Let one of the model's methods do this, ``HANG`` or the name of an exception, as long as the context lasts."""
    written = directory / f"{method}.new"
    written.write_text(how, encoding="utf-8")
    file = written.rename(directory / method)  # whole, for who reads it meanwhile
    try:
        yield
    finally:
        file.unlink()
