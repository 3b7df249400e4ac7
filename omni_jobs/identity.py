"""Identities: what tells one pipeline, one stage and one tenant from others, wherever rows and queues refer to them."""

from typing import Final, NamedTuple

DEFAULT_TENANT: Final = "default"
"""The tenant of a job whose submit names none."""


class PipelineId(NamedTuple):
    """A pipeline: the name by which clients know it, and the digest of its file (``Pipeline.digest``)."""

    name: str
    digest: str


class StageId(NamedTuple):
    """A stage of a pipeline."""

    pipeline: PipelineId
    stage: str

    @property
    def columns(self) -> dict[str, str]:
        """The columns by which rows name it, with their values."""
        return {"pipeline": self.pipeline.name, "stage": self.stage, "pipeline_digest": self.pipeline.digest}
