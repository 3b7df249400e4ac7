"""The vocoder: acoustic features become samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from hibari import dsp  # type: ignore[import-untyped]

from omni_jobs.errors import ModelError, OutOfMemory
from workers.models.hibari.hibari_prompts import SPECTRA

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sentence_features(features: Mapping[str, NDArray[Any]], sentences: Sequence[int]) -> Iterator[list[NDArray[Any]]]:
    """Yield the features of each sentence in the order of ``dsp.synth``'s arguments, cut out of those of all frames."""
    begin = 0
    for frames in sentences:
        end = begin + frames
        spectra = [np.ascontiguousarray(features[name][:, begin:end]) for name in SPECTRA]
        yield [*spectra, features["f0"][begin:end]]
        begin = end


def speech_of(features: Sequence[NDArray[Any]], noise: np.random.Generator) -> NDArray[Any]:
    """Return the samples of one sentence, float32 [300 x frames], whose breath is drawn from ``noise``.

    Raises ModelError for features that give no finite samples, and OutOfMemory.
    """
    try:
        with np.errstate(all="ignore"):  # what it would warn of is found below
            samples: NDArray[Any] = dsp.synth(*features, noise)
    except MemoryError as error:
        raise OutOfMemory(f"there is too little memory for this sentence: {error}") from error
    if not np.isfinite(samples).all():
        raise ModelError("the features give samples that are not finite", field="tensors")
    return samples
