"""The family ``qwen2_5_omni``: thinker and talker on vLLM, and code2wav, a diffusion transformer with a vocoder."""

from omni_jobs.pipelines.declarations import CardMemory, ComponentDeclaration, Family, ProcessorDeclaration
from omni_jobs.pipelines.flows import Dialect

_HERE = "workers.models.qwen2_5_omni"
_TOKENS = "workers.runners.ar.parameters:TokenParameters"

TALKER_MODEL = "OmniJobsQwen2_5OmniTalker"
"""The name under which vLLM gets the talker's model class."""

_OURS = Dialect("qwen2_5_omni")

QWEN2_5_OMNI = Family(
    components={
        "thinker": ComponentDeclaration(
            "ar",
            produces=frozenset({"text", "hidden_states"}),
            implementation=f"{_HERE}.ar_components:THINKER",
            dialects={"hidden_states": _OURS},
            memory=CardMemory(
                weights=("thinker.",),
                context=("config.json", "thinker_config", "text_config"),
                work_bytes=5_900_000_000,
            ),
        ),
        "talker": ComponentDeclaration(
            "ar",
            produces=frozenset({"codes"}),
            needs=frozenset({"hidden_states"}),
            parameters=_TOKENS,
            implementation=f"{_HERE}.ar_components:TALKER",
            dialects={"hidden_states": _OURS, "codes": _OURS},
            memory=CardMemory(weights=("talker.",), context=("config.json", "talker_config"), work_bytes=2_100_000_000),
        ),
        "code2wav": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"waveform"}),
            needs=frozenset({"codes"}),
            dtypes=frozenset({"auto", "float32"}),
            parameters=f"{_HERE}.parameters:OdeParameters",
            implementation=f"{_HERE}.code2wav:load_code2wav",
            resumable=True,
            dialects={"codes": _OURS},
            memory=CardMemory(weights=("token2wav.",), auto_bytes=4, work_bytes=4_300_000_000),
        ),
    },
    prompts=f"{_HERE}.prompts:QwenOmniPromptRenderer",
    processors={
        "thinker2talker": ProcessorDeclaration(
            f"{_HERE}.processors:Thinker2TalkerProcessor",
            "ar",
            consumes=frozenset({"hidden_states"}),
            parameters=_TOKENS,
        ),
        "talker2code2wav": ProcessorDeclaration(
            f"{_HERE}.processors:Talker2Code2WavProcessor",
            "diffusion",
            consumes=frozenset({"codes"}),
            parameters=f"{_HERE}.parameters:OdeParameters",
        ),
    },
    vllm_models={TALKER_MODEL: f"{_HERE}.talker:Qwen2_5OmniTalkerForConditionalGeneration"},
    tiny_checkpoint=f"{_HERE}.tiny_checkpoint",
)
