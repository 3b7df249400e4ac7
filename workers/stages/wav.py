"""``encode_wav``: a waveform as the bytes of a WAV file, mono, PCM of 16 bits."""

import io

import numpy as np
import soundfile  # type: ignore[import-untyped]
import torch

from omni_jobs.errors import ModelError


def encode_wav(waveform: object, sampling_rate: int) -> bytes:
    """Return the bytes of a WAV file of the waveform: a tensor [S] in -1 … 1. Louder samples are clipped.

    ``sampling_rate`` is in Hz. Raises ModelError when ``waveform`` is no tensor [S], or a sample is not finite.
    """
    if not isinstance(waveform, torch.Tensor) or waveform.ndim != 1:
        raise ModelError("the runner gave no waveform", field="waveform")
    samples = waveform.detach().to("cpu", torch.float32).numpy()
    if not np.isfinite(samples).all():
        raise ModelError("the waveform has values that are not finite", field="waveform")
    pcm = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype(np.int16)
    file = io.BytesIO()
    soundfile.write(file, pcm, sampling_rate, format="WAV", subtype="PCM_16")
    return file.getvalue()
