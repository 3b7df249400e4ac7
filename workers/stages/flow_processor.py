"""``FlowProcessor``: the base of input processors, which finds the payloads of earlier stages by their flows."""

from typing import Any

from omni_jobs.payloads import AdditionalInformationPayload, Payload
from omni_jobs.pipelines.stage_config import StageConfig
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class FlowProcessor:
    """An ``InputProcessor`` without ``__call__``. It reads no checkpoint."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Note which earlier stage each flow is taken from; of several with one flow, it is the first."""
        self._stage_of = {flow: name for name, flow in reversed(stage.inputs.items())}

    def takes(self, flow: str) -> bool:
        """Return whether the stage has an input of this flow."""
        return flow in self._stage_of

    def payload(self, stage_input: StageInput[Any], flow: str) -> Payload:
        """Return the payload that is the input of this flow."""
        return stage_input.upstream[self._stage_of[flow]]

    def information(self, stage_input: StageInput[Any], flow: str) -> AdditionalInformationPayload:
        """Return the tensors and values of that payload. Raises PayloadCorrupt where it has none."""
        return stage_input.information(self._stage_of[flow])
