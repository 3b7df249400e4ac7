"""The family ``hibari``, English speech of text on a CPU: an acoustic model, and the vocoder that makes sound of it."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration, RunnerDeclaration
from omni_jobs.pipelines.flows import Flow, TensorField, ValueField

_HERE = "workers.models.hibari"
_ACOUSTIC = f"{_HERE}.parameters:AcousticParameters"
_VOCODER = f"{_HERE}.parameters:VocoderParameters"

_FLOAT32 = frozenset({"F32"})
_SPECTRUM = TensorField(_FLOAT32, ((601, "frames"),), finite=True)  # bins of a spectrum of 1,200 samples

ACOUSTIC_FEATURES = Flow(
    "acoustic_features",
    {
        "lh": _SPECTRUM,  # of the harmonics: the logarithm of their magnitudes
        "th": _SPECTRUM,  # and their phases, before a tanh
        "ln": _SPECTRUM,  # of the noise: the logarithm of its magnitudes
        "lr": _SPECTRUM,  # of the part with phases of its own: the logarithm of its magnitudes
        "phi": _SPECTRUM,  # and its phases
        "f0": TensorField(_FLOAT32, (("frames",),), finite=True),  # the voice's pitch in Hz; below 40 there is none
        "sentences": TensorField(frozenset({"I64"}), (("sentences",),)),  # frames of each; a very long one is several
    },
    {"sampling_rate": ValueField(int, at_least=1)},
    content="speech",
)
"""The speech of some sentences as spectra of frames, 300 samples each, which stand one sentence after the other."""

HIBARI = Family(
    components={
        "acoustic": ComponentDeclaration("hibari", produces=frozenset({"acoustic_features"}), parameters=_ACOUSTIC),
        "vocoder": ComponentDeclaration(
            "hibari",
            produces=frozenset({"waveform"}),
            needs=frozenset({"acoustic_features"}),
            parameters=_VOCODER,
        ),
    },
    prompts=f"{_HERE}.prompts:HibariPromptRenderer",
    processors={
        "say": ProcessorDeclaration(f"{_HERE}.processors:SayProcessor", "hibari", parameters=_ACOUSTIC),
        "speak": ProcessorDeclaration(
            f"{_HERE}.processors:SpeakProcessor", "hibari", consumes=frozenset({"text"}), parameters=_ACOUSTIC
        ),
        "features2wave": ProcessorDeclaration(
            f"{_HERE}.processors:Features2WaveProcessor",
            "hibari",
            consumes=frozenset({"acoustic_features"}),
            parameters=_VOCODER,
        ),
    },
    checkpoint="hibari:assets",  # the voice heart
    checkpoint_files=(),
)

HIBARI_RUNNER = RunnerDeclaration(
    implementation=f"{_HERE}.hibari_runner:HibariRunner",
    engine=f"{_HERE}.engine_settings:HibariEngine",
    packages={"hibari": "pip install 'omni-jobs[voice]'"},
)
