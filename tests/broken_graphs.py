"""Stage configs that no worker can run, and what is said of each: field, line, message."""

from dataclasses import dataclass

from omni_jobs.pipelines.declarations import FAMILIES
from omni_jobs.pipelines.plugins import names

__all__ = ["BROKEN", "GOOD", "Broken"]

GOOD = """\
name: omni
version: "1"
model:
  family: qwen2_5_omni
stages:
  thinker:
    kind: ar
    component: thinker
    processor: chat
    produces: hidden_states
  talker:
    kind: ar
    component: talker
    processor: thinker2talker
    inputs: {thinker: hidden_states}
    produces: codes
  code2wav:
    kind: diffusion
    component: code2wav
    processor: talker2code2wav
    inputs: {talker: codes}
    produces: waveform
outputs:
  text: {stage: thinker}
  audio: {stage: code2wav}
"""


@dataclass(frozen=True)
class Broken:
    """``GOOD`` with ``old`` replaced by ``new``."""

    name: str
    old: str
    new: str
    line: int
    field: str
    message: str

    @property
    def text(self) -> str:
        assert GOOD.count(self.old) == 1, self.old
        return GOOD.replace(self.old, self.new)


_TALKER_INPUTS = "    inputs: {thinker: hidden_states}\n"
_THINKER = "kind: ar\n    component: thinker"

BROKEN = [
    # What was called ok.
    Broken(
        "talker without inputs", _TALKER_INPUTS, "", 11, "stages.talker.inputs",
        "input processor thinker2talker needs an input of hidden_states",
    ),
    Broken(
        "unknown component", "component: talker", "component: taker", 13, "stages.talker.component",
        "family qwen2_5_omni has no component 'taker'; it has thinker, talker, code2wav",
    ),
    Broken(
        "thinker as diffusion", _THINKER, "kind: diffusion\n    component: thinker", 7, "stages.thinker.kind",
        "component thinker is run by ar stages, not diffusion",
    ),
    Broken(
        "code2wav as ar", "kind: diffusion", "kind: ar", 18, "stages.code2wav.kind",
        "component code2wav is run by diffusion stages, not ar",
    ),
    Broken(
        "the talker with code2wav's processor", "processor: thinker2talker", "processor: talker2code2wav",
        14, "stages.talker.processor", "input processor talker2code2wav makes input for diffusion stages, not ar",
    ),
    Broken(
        "an input of another flow too many", "{talker: codes}", "{talker: codes, thinker: hidden_states}",
        21, "stages.code2wav.inputs.thinker", "input processor talker2code2wav takes codes, not hidden_states",
    ),
    # Of the same kinds.
    Broken(
        "an input of the same flow too many",
        "{talker: codes}\n    produces: waveform\n",
        "{talker: codes, other: codes}\n    produces: waveform\n  other:\n    kind: ar\n    component: talker\n"
        "    processor: thinker2talker\n    inputs: {thinker: hidden_states}\n    produces: codes\n",
        21, "stages.code2wav.inputs.other",
        "input processor talker2code2wav takes one input of codes, and 'talker' is that",
    ),
    Broken(
        "an input of the wrong flow", "{thinker: hidden_states}", "{thinker: text}", 15, "stages.talker.inputs.thinker",
        "input processor thinker2talker takes hidden_states, not text",
    ),
    Broken(
        "an input where the processor takes none", "processor: thinker2talker", "processor: chat",
        15, "stages.talker.inputs.thinker", "input processor chat takes no input, not hidden_states",
    ),
    Broken(
        "a talker that hears nothing", f"processor: thinker2talker\n{_TALKER_INPUTS}", "processor: chat\n",
        11, "stages.talker.inputs", "component talker needs an input of hidden_states",
    ),
    Broken(
        "code2wav fed by the thinker's hidden states", "{talker: codes}", "{talker: hidden_states}",
        21, "stages.code2wav.inputs.talker", "stage 'talker' produces codes, not hidden_states",
    ),
    Broken(
        "no component", "    component: talker\n", "", 11, "stages.talker.component",
        "is missing; family qwen2_5_omni has thinker, talker, code2wav",
    ),
    Broken(
        "a component of a model that is run whole", "family: qwen2_5_omni", "family: causal_lm",
        8, "stages.thinker.component",
        "family causal_lm has no component 'thinker'; it has encoder, "
        "and without a component its checkpoint is run whole",
    ),
    Broken(
        "an echo stage with a component", _THINKER, "kind: echo\n    component: thinker", 8, "stages.thinker.component",
        "a stage of kind echo runs no component",
    ),
    Broken(
        "an echo stage that makes hidden states", _THINKER, "kind: echo", 9, "stages.thinker.produces",
        "a stage of kind echo makes bytes or pixels or text or waveform, not hidden_states",
    ),
    Broken(
        "a talker that makes hidden states", "produces: codes", "produces: hidden_states", 16, "stages.talker.produces",
        "component talker makes codes, not hidden_states",
    ),
    Broken(
        "a thinker that makes codes", "processor: chat\n    produces: hidden_states",
        "processor: chat\n    produces: codes", 10, "stages.thinker.produces",
        "component thinker makes hidden_states or text, not codes",
    ),
    Broken(
        "parameters of another kind", "    produces: waveform", "    produces: waveform\n    parameters: {top_k: 3}",
        23, "stages.code2wav.parameters.top_k", "unknown key",
    ),
    Broken(
        "a dtype that code2wav does not run in", "    produces: waveform",
        "    produces: waveform\n    engine: {dtype: bfloat16}", 23, "stages.code2wav.engine.dtype",
        "component code2wav runs in auto or float32, not bfloat16",
    ),
    Broken(
        "two devices for a component that takes one", "    produces: waveform",
        "    produces: waveform\n    engine: {cuda: {devices: 2}}", 23,
        "stages.code2wav.engine.cuda.devices", "component code2wav takes no devices",
    ),
    Broken(
        "adapters for a component that takes none", "    produces: waveform",
        "    produces: waveform\n    engine: {lora_modules: {loud: /loras/loud}}", 23,
        "stages.code2wav.engine.lora_modules", "component code2wav takes no lora_modules",
    ),
    Broken(
        "such a dtype on a host without an accelerator", "    produces: waveform",
        "    produces: waveform\n    engine:\n      cpu:\n        dtype: float16",
        25, "stages.code2wav.engine.cpu.dtype",
        "component code2wav runs in auto or float32, not float16",
    ),
    Broken(
        "less room for tokens than for sequences", "    produces: codes",
        "    produces: codes\n    engine: {max_num_seqs: 64, max_num_batched_tokens: 32}",
        17, "stages.talker.engine.max_num_batched_tokens",
        "32 is less than max_num_seqs, 64: each needs a token in a step",
    ),
    Broken(
        "unknown processor", "processor: chat", "processor: chatter", 9, "stages.thinker.processor",
        "no input processor 'chatter' for this stage; known: chat, chat_of_transcript, embeds, talker2code2wav, "
        "thinker2talker",
    ),
    Broken(
        "unknown family", "family: qwen2_5_omni", "family: qwen9", 4, "model.family",
        "no such plug-in 'qwen9' of omni_jobs.families is installed; known: "
        + ", ".join(names(FAMILIES)),
    ),
]  # fmt: skip
