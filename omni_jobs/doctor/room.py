"""Whether this host's cards have room for the stages that are served, alone and together, and their shares do."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from omni_jobs.cards import CardNeed, divided, need_of
from omni_jobs.doctor.finding import Finding
from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.prompts.renderers import checkpoint_of


class Lack(NamedTuple):
    message: str
    remedy: str


def needs_of(pipeline: Pipeline, models: Mapping[str, Path]) -> list[CardNeed]:
    """Return what the stages take of a card; nothing where a checkpoint is not here or cannot be read."""
    needs = []
    for stage in pipeline.stages.values():
        directory = checkpoint_of(pipeline, stage, models)
        try:
            need = None if directory is None else need_of(pipeline, stage, directory)
        except ConfigError:  # its form is another's business: a GGUF file, a checkpoint of a plug-in
            return []
        if need is not None:
            needs.append(need)
    return needs


def lack(name: str, needs: Sequence[CardNeed], cards: Sequence[int], *, has_own_share: bool) -> Lack | None:
    """Return what the stages of one pipeline lack on cards of so many bytes; None: nothing.

    ``has_own_share``: OMNI_JOBS_GPU_MEMORY_UTILIZATION is set here, so the shares of the stage config do not count.
    """
    places = divided(needs, cards) if cards else []
    if homeless := [place.need.stage for place in places if not place.cards]:
        return Lack(
            f"the cards here have no room for {', '.join(homeless)} beside its other stages",
            f"omni-jobs pipelines fit {name} shows what each wants; see docs/operations/gpus.md",
        )
    if has_own_share or not (small := [place for place in places if place.is_given_too_little]):
        return None
    told = [f"{place.need.stage} {place.need.share:g} of a card, and it takes {place.needed:.2f}" for place in small]
    return Lack(
        f"the stage config gives {', '.join(told)}",
        "give its workers a larger share (OMNI_JOBS_GPU_MEMORY_UTILIZATION, or gpu_memory_utilization in the stage "
        f"config), unless they have one: omni-jobs pipelines fit {name}",
    )


def lack_together(needs: Mapping[str, Sequence[CardNeed]], cards: Sequence[int]) -> Iterator[Finding]:
    """Yield what pipelines, by name, lack together on cards of so many bytes, of those that each have room alone."""
    alone = {name: own for name, own in needs.items() if own and all(place.cards for place in divided(own, cards))}
    stages = [(name, need) for name, own in alone.items() for need in own]
    places = divided([need for _, need in stages], cards) if len(alone) > 1 else []
    homeless = [f"{name}.{need.stage}" for (name, need), place in zip(stages, places, strict=False) if not place.cards]
    if homeless:
        yield Finding(
            about="pipelines",
            state="warning",
            message=f"each of {', '.join(alone)} has room on the cards here, and all together have not: none is left "
            f"for {', '.join(homeless)}",
            remedy=f"omni-jobs pipelines fit {' '.join(alone)} shows what each wants; run some of their workers on "
            "another host, or serve fewer here (OMNI_JOBS_PIPELINES): docs/operations/gpus.md",
        )
