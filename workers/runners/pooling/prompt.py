"""``PoolingPrompt``: the engine prompt of a pooling stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from omni_jobs.pipelines.parameters import StageParameters


@dataclass(frozen=True, slots=True)
class PoolingPrompt:
    """The engine prompt of a pooling stage: one or two sequences of token ids, each of which becomes rows.

    prompt_token_ids    [P], of which the first ``drop`` give no row
    negative_token_ids  [Q], of which the first ``drop`` give no row; None: there is no negative prompt
    drop                the tokens at the beginning of both that belong to the template: less than P and than Q
    """

    prompt_token_ids: Sequence[int]
    parameters: StageParameters
    seed: int
    negative_token_ids: Sequence[int] | None = None
    drop: int = 0
