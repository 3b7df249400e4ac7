"""``TREES``: two components, of which one hands tensors, a list and a dict of them on, and the other one compares."""

from pathlib import Path

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration

_PARAMETERS = "omni_jobs.pipelines.parameters:StageParameters"
_HERE = "tests.trees.model"

TREES = Family(
    components={
        "grow": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"latents"}),
            parameters=_PARAMETERS,
            implementation=f"{_HERE}:load_grown",
            resumable=True,
        ),
        "read": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"pixels"}),
            needs=frozenset({"latents"}),
            parameters=_PARAMETERS,
            implementation=f"{_HERE}:load_read",
        ),
    },
    processors={
        "grow": ProcessorDeclaration(f"{_HERE}:GrowProcessor", "diffusion", parameters=_PARAMETERS),
        "read": ProcessorDeclaration(
            f"{_HERE}:ReadProcessor", "diffusion", consumes=frozenset({"latents"}), parameters=_PARAMETERS
        ),
    },
    checkpoint_files=(),
)

CONFIG = """
name: trees
version: "1"
model:
  family: trees
stages:
  grow:
    kind: diffusion
    component: grow
    processor: grow
    produces: latents
    slots: 4
    time_limit_s: 60
    engine: {snapshot_every_s: 0, snapshot_every_steps: 1}
  read:
    kind: diffusion
    component: read
    processor: read
    inputs: {grow: latents}
    produces: pixels
    slots: 4
    time_limit_s: 60
outputs:
  image: {stage: read}
"""


def installed(directory: Path) -> Path:
    """What installing the family would leave: a directory for ``sys.path``."""
    found = directory / "trees-1.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: trees\nVersion: 1\n", encoding="utf-8")
    entry = f"[omni_jobs.families]\ntrees = {__name__}:TREES\n"
    (found / "entry_points.txt").write_text(entry, encoding="utf-8")
    return directory
