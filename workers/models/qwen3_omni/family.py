"""The family ``qwen3_omni``: thinker and talker with experts on vLLM, and code2wav, which decodes frames of codes."""

from omni_jobs.pipelines.declarations import CardMemory, ComponentDeclaration, Family, ProcessorDeclaration
from omni_jobs.pipelines.flows import Dialect

_HERE = "workers.models.qwen3_omni"

QWEN3_TALKER_MODEL = "OmniJobsQwen3OmniTalker"
"""The name under which vLLM gets the talker's model class."""

_OURS = Dialect("qwen3_omni")

QWEN3_OMNI = Family(
    components={
        "thinker": ComponentDeclaration(
            "ar",
            produces=frozenset({"text", "hidden_states"}),
            implementation=f"{_HERE}.ar_components:QWEN3_THINKER",
            dialects={"hidden_states": _OURS},
            memory=CardMemory(
                weights=("thinker.",),
                context=("config.json", "thinker_config", "text_config"),
                work_bytes=4_000_000_000,
            ),
        ),
        "talker": ComponentDeclaration(
            "ar",
            produces=frozenset({"code_frames"}),
            needs=frozenset({"hidden_states"}),
            parameters=f"{_HERE}.parameters:TalkerParameters",
            implementation=f"{_HERE}.ar_components:QWEN3_TALKER",
            dialects={"hidden_states": _OURS, "code_frames": _OURS},
            memory=CardMemory(
                weights=("talker.",), context=("config.json", "talker_config", "text_config"), work_bytes=2_100_000_000
            ),
        ),
        "code2wav": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"waveform"}),
            needs=frozenset({"code_frames"}),
            dtypes=frozenset({"auto", "float32"}),
            parameters=f"{_HERE}.parameters:ChunkParameters",
            implementation=f"{_HERE}.code2wav:load_frame_decoder",
            dialects={"code_frames": _OURS},
            memory=CardMemory(weights=("code2wav.",), auto_bytes=4, work_bytes=4_000_000_000),
        ),
    },
    prompts=f"{_HERE}.prompts:Qwen3OmniPromptRenderer",
    processors={
        "thinker2talker": ProcessorDeclaration(
            f"{_HERE}.processors:ThinkerRowsProcessor",
            "ar",
            consumes=frozenset({"hidden_states"}),
            parameters=f"{_HERE}.parameters:TalkerParameters",
        ),
        "talker2code2wav": ProcessorDeclaration(
            f"{_HERE}.processors:CodeFramesProcessor",
            "diffusion",
            consumes=frozenset({"code_frames"}),
            parameters=f"{_HERE}.parameters:ChunkParameters",
        ),
    },
    vllm_models={QWEN3_TALKER_MODEL: f"{_HERE}.talker:Qwen3OmniTalkerForConditionalGeneration"},
    tiny_checkpoint=f"{_HERE}.tiny_checkpoint",
)
