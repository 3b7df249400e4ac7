"""Qwen-Image-Edit's text encoder as a vLLM model: vLLM's Qwen2.5-VL, with a processor from a folder of its own."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from transformers import Qwen2_5_VLProcessor
from vllm.model_executor.models.qwen2_5_vl import (
    Qwen2_5_VLDummyInputsBuilder,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLMultiModalProcessor,
    Qwen2_5_VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing.context import InputProcessingContext

from workers.models.qwen_image.template import PROCESSOR


class TextEncoderProcessingInfo(Qwen2_5_VLProcessingInfo):
    """Takes the processor of pictures from the checkpoint's folder ``processor``, beside the weights' folder."""

    def get_hf_processor(self, **kwargs: object) -> Qwen2_5_VLProcessor:  # type: ignore[override]  # as vLLM's own
        processor: Qwen2_5_VLProcessor = self._beside.get_hf_processor(Qwen2_5_VLProcessor, **kwargs)
        return processor

    @cached_property
    def _beside(self) -> InputProcessingContext:
        config = copy.copy(self.ctx.model_config)
        config.model = str(Path(config.model).parent / PROCESSOR)
        return replace(self.ctx, model_config=config)


@MULTIMODAL_REGISTRY.register_processor(
    Qwen2_5_VLMultiModalProcessor, info=TextEncoderProcessingInfo, dummy_inputs=Qwen2_5_VLDummyInputsBuilder
)
class QwenImageEditTextEncoder(Qwen2_5_VLForConditionalGeneration):
    """Qwen2.5-VL with its vision tower, as a Diffusers checkpoint has it."""
