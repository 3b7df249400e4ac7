"""A waveform as a WAV file."""

import io
import wave

import numpy as np
import pytest
import torch

from omni_jobs.errors import ModelError
from workers.stages.wav import encode_wav


def test_a_waveform_is_a_mono_file_of_16_bit_pcm_and_louder_samples_are_clipped() -> None:
    data = encode_wav(torch.tensor([0.0, 0.5, -0.5, 1.0, -1.0, 7.0, -7.0]), 24_000)
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert samples.tolist() == [0, 16384, -16384, 32767, -32767, 32767, -32767]
    assert len(data) == 44 + samples.nbytes


@pytest.mark.parametrize(
    "waveform",
    [None, np.zeros(3, dtype=np.float32), torch.zeros(1, 3), torch.tensor([0.0, torch.nan]), torch.tensor([torch.inf])],
    ids=["none", "no tensor", "two dimensions", "not a number", "infinite"],
)
def test_a_value_that_is_no_waveform_is_refused(waveform: object) -> None:
    with pytest.raises(ModelError) as caught:
        encode_wav(waveform, 24_000)
    assert caught.value.field == "waveform"
