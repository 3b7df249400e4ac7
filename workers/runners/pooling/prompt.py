"""``PoolingPrompt``: the engine prompt of a pooling stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omni_jobs.pipelines.parameters import StageParameters

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True)
class PoolingPrompt:
    """The engine prompt of a pooling stage: one or two sequences of token ids, each of which becomes rows.

    prompt_token_ids    [P], of which the first ``drop`` give no row
    negative_token_ids  [Q], of which the first ``drop`` give no row; None: there is no negative prompt
    drop                the tokens at the beginning of both that belong to the template: less than P and than Q
    pictures            RGB, for the placeholders of each sequence in turn; the component says how many it takes at most
    picture_tokens      by how many tokens each sequence grows, as the engine puts tokens for these placeholders: each
                        has a row
    prompt_start        the position in the prompt of the stage of kind ``ar`` that takes the rows at which they begin;
                        None: they are all of it
    """

    prompt_token_ids: Sequence[int]
    parameters: StageParameters
    seed: int
    negative_token_ids: Sequence[int] | None = None
    drop: int = 0
    pictures: Sequence[Image.Image] = ()
    picture_tokens: int = 0
    prompt_start: int | None = None
