"""Families for tests whose model's code raises what a file names: the example's tinted Llama, and an encoder.

``installed`` puts them on a directory for ``sys.path``. This module is light; the model stands in ``unruly_model``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family
from workers.runners.ar.component import ArComponent
from workers.runners.pooling.component import PoolingComponent

RAISES = "OMNI_TESTS_UNRULY"
"""The environment variable with a directory. The file of a method's name holds the exception that it raises."""

CONTEXT = 16_384
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
    vllm_models={"UnrulyLlama": "tests.oracles.unruly_model:UnrulyLlama"},
)


def installed(directory: Path) -> Path:
    """What installing the family would leave: a directory for ``sys.path``."""
    found = directory / "unruly-1.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: unruly\nVersion: 1\n", encoding="utf-8")
    entry = f"[omni_jobs.families]\nunruly = {__name__}:UNRULY\n"
    (found / "entry_points.txt").write_text(entry, encoding="utf-8")
    return directory


def raise_from_now_on(directory: Path, place: str, error: type[BaseException]) -> None:
    """Let one of the model's methods raise this."""
    (directory / place).write_text(error.__name__, encoding="utf-8")


@contextmanager
def raising(directory: Path, place: str, error: type[BaseException]) -> Iterator[None]:
    """Let one of the model's methods raise this as long as the context lasts."""
    raise_from_now_on(directory, place, error)
    try:
        yield
    finally:
        (directory / place).unlink()
