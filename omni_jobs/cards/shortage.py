"""``shortage``: why a stage may not have been loaded onto a card, in the numbers that would do."""

import math

from omni_jobs.cards.host import cards_of_host
from omni_jobs.cards.need import need_of
from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.prompts.renderers import checkpoint_of
from omni_jobs.settings import Settings


def shortage(pipeline: Pipeline, stage: StageConfig, settings: Settings, number: int) -> str | None:
    """Return what this stage lacks on this host's card of a number; None: nothing that is known."""
    directory = checkpoint_of(pipeline, stage, settings.models)
    try:
        need = None if directory is None else need_of(pipeline, stage, directory)
        card = next((each for each in cards_of_host() if each.number == number), None)
    except ConfigError:  # a checkpoint or a driver that cannot be asked has its own error
        return None
    if need is None or card is None:
        return None
    takes = f"{stage.name} takes about {need.bytes / 1e9:.1f} GB of a card"
    share = settings.gpu_memory_utilization or need.share
    if need.bytes > card.total_bytes:
        return f"{takes}, and card {number} has {card.total_bytes / 1e9:.1f}"
    if need.takes_share and share is not None and share * card.total_bytes < need.bytes:
        least = math.ceil(100 * need.bytes / card.total_bytes) / 100
        return (
            f"{takes}: a share of {least:.2f} of card {number} would do, and it has {share:g} "
            "(OMNI_JOBS_GPU_MEMORY_UTILIZATION, or gpu_memory_utilization in the stage config)"
        )
    if card.free_bytes < need.bytes:
        return f"{takes}, and {card.free_bytes / 1e9:.1f} GB of card {number} are free: other processes have the rest"
    return None
