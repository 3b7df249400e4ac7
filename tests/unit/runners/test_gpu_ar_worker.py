"""The worker's calls for many requests at once: what the model's code raises fails its request alone."""

from typing import Any

import pytest

pytest.importorskip("vllm")

from omni_jobs.errors import ModelError, OmniJobsError, OutOfMemory
from workers.runners.ar.gpu_ar_worker import GPUARWorker


class Information:
    """The part of a model runner and of a spool that a load of information needs: one of three requests breaks."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.loaded: list[str] = []

    def read(self, key: str) -> tuple[dict[str, Any], dict[str, str]]:
        return {}, {"key": key}

    def load_information(self, key: str, information: dict[str, str], prompt_tokens: int) -> None:
        if key == "broken":
            raise self._error
        self.loaded.append(information["key"])


@pytest.mark.parametrize(
    ("error", "due"),
    [
        (ModelError("no tint", field="tint"), ModelError),
        (ValueError("odd"), ModelError),
        (KeyError("tint"), ModelError),
        (SystemExit(1), ModelError),
        (KeyboardInterrupt(), ModelError),
        (StopIteration(), ModelError),
        (MemoryError(), OutOfMemory),
    ],
)
def test_what_a_models_code_raises_over_one_request_fails_that_request_alone(
    error: BaseException, due: type[OmniJobsError]
) -> None:
    worker = object.__new__(GPUARWorker)
    parts = Information(error)
    worker.model_runner = parts  # type: ignore[assignment]
    worker._spool = parts  # type: ignore[assignment]
    before, broken, after = worker.omni_load([("one", 1), ("broken", 1), ("two", 1)])
    assert (before, after, parts.loaded) == (None, None, ["one", "two"])
    assert broken is not None
    assert isinstance(OmniJobsError.from_dict(broken), due)
