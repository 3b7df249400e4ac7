"""How much a stage made and heard, counted by what its runner gave it."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from workers.stages.types import OmniModelRunnerOutput

_TOKENS = ("prompt_tokens", "completion_tokens")


def made_by(output: OmniModelRunnerOutput, tokens: Mapping[str, int]) -> dict[str, float]:
    """Return the amounts of an output by the fields of ``omni_jobs.views.UsageView``, without those that are 0.

    ``tokens`` are those of the stage's result. Sound is measured by its samples, pictures and frames are counted by
    their pixels, and recordings by the durations of the transcripts. What a runner gives encoded counts as one picture;
    sound and video so given are not measured, because they are not decoded here.
    """
    made: dict[str, float] = {name: tokens[name] for name in _TOKENS if tokens.get(name)}
    if (transcripts := output.result.get("transcripts")) and (heard_s := _heard_s(transcripts)):
        made["heard_s"] = heard_s
    tensors = output.multimodal_outputs
    if "waveform" in tensors and (sound_s := _sound_s(tensors["waveform"], output.values.get("sampling_rate"))):
        made["sound_s"] = sound_s
    shape = _shape(tensors["pixels"]) if "pixels" in tensors else ()
    if len(shape) == 4:
        made["frames"] = shape[0]
    elif len(shape) == 3 or "image" in output.encoded:
        made["pictures"] = 1
    return made


def _sound_s(waveform: Any, rate: Any) -> float:
    shape = _shape(waveform)
    return shape[0] / rate if len(shape) == 1 and _is_number(rate) and rate > 0 else 0.0


def _heard_s(transcripts: Any) -> float:
    """Return the seconds of all recordings whose duration is known, of the ``transcripts`` of a result."""
    recordings = transcripts if isinstance(transcripts, list) else []
    durations = [each.get("duration_s") for each in recordings if isinstance(each, Mapping)]
    return sum(float(each) for each in durations if _is_number(each))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(getattr(tensor, "shape", ()))
