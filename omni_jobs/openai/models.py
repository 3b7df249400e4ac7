"""``model_of``: a pipeline as OpenAI's clients know a model."""

from typing import Literal

from pydantic import BaseModel


class Model(BaseModel):
    """A pipeline. ``created`` is 0, because a pipeline has no date, and all servers answer alike."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0  # unix seconds
    owned_by: str = "omni-jobs"


class ModelList(BaseModel):
    """The pipelines that a server serves."""

    object: Literal["list"] = "list"
    data: list[Model]


def model_of(label: str) -> Model:
    """Return the pipeline of this label as a model."""
    return Model(id=label)
