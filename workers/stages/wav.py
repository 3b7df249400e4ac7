"""Audio as a file: a mono 16-bit PCM WAV of a waveform."""

from __future__ import annotations

import io
import wave

import numpy as np
import torch

from omni_jobs.errors import ModelError

__all__ = ["encode_wav"]


def encode_wav(waveform: object, sampling_rate: int) -> bytes:
    """A waveform, float [S] in -1 … 1, as a file; louder samples are clipped.

    Raises ModelError for what is no such tensor and for samples that are not finite.
    """
    if not isinstance(waveform, torch.Tensor) or waveform.ndim != 1:
        raise ModelError("the runner gave no waveform", field="waveform")
    samples = waveform.detach().to("cpu", torch.float32).numpy()
    if not np.isfinite(samples).all():
        raise ModelError("the waveform has values that are not finite", field="waveform")
    pcm = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sampling_rate)
        file.writeframes(pcm.tobytes())
    return buffer.getvalue()
