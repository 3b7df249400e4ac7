"""How an AR runner asks vLLM for tokens: the ``SamplingParams`` of a prompt, and the check of how its request ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import EngineDead, ModelError
from workers.runners.ar.asked_text import text_arguments

if TYPE_CHECKING:
    from vllm import SamplingParams

    from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_AS_IN_VLLM = ("temperature", "top_p", "top_k", "min_p", *_PENALTIES)  # parameters that mean there what they mean here


def sampling_params(
    prompt: OmniTextPrompt | OmniTokensPrompt,
    options: Mapping[str, Any],
    *,
    stop_ids: Sequence[int],
    text: bool,
    skips_special_tokens: bool,
    reads_cache: bool,
) -> SamplingParams:
    """Return vLLM's parameters for a prompt.

    ``options``: for our model runner. ``stop_ids``: those of the component. ``text``: whether its tokens are text.
    ``skips_special_tokens``: whether the text may lack them. ``reads_cache``: whether the request reads prefixes.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    parameters = prompt.parameters
    return SamplingParams(
        **{name: getattr(parameters, name) for name in _AS_IN_VLLM},
        **(text_arguments(prompt) if text else {}),
        max_tokens=parameters.max_tokens,  # vLLM ends earlier where the context does
        min_tokens=min(parameters.min_tokens, parameters.max_tokens),
        stop_token_ids=[] if parameters.ignore_eos else list(stop_ids),
        ignore_eos=parameters.ignore_eos or not text,
        seed=None if parameters.temperature == 0 else prompt.seed,
        skip_special_tokens=skips_special_tokens,
        detokenize=text,
        output_kind=RequestOutputKind.DELTA,
        # Cached tokens are not computed, so they have no hidden states but those that are kept; and a prompt of
        # placeholders may stand for other additional information than the cached one.
        skip_reading_prefix_cache=not reads_cache,
        extra_args=dict(options) or None,
    )


def check_end(finish_reason: str | None, sampling: SamplingParams) -> None:
    """Raise EngineDead for a request that the engine gave up; ModelError where the form of the text may be why."""
    if finish_reason in ("stop", "length"):
        return
    if finish_reason == "error" and sampling.structured_outputs is not None:
        raise ModelError("the engine could not hold the text to this form", field="response_format")
    raise EngineDead(f"the engine gave the request up: {finish_reason}")
