"""The names of spans' attributes. Those that OpenTelemetry's GenAI conventions have are theirs.

docs/observability.md has the same table, and a test compares the two.
"""

from collections.abc import Mapping
from typing import Any, Final

JOB: Final = "omni_jobs.job.id"
STAGE_RUN: Final = "omni_jobs.stage_run.id"
STAGE: Final = "omni_jobs.stage"
ATTEMPT: Final = "omni_jobs.attempt"
WORKER: Final = "omni_jobs.worker.id"
RESULT: Final = "omni_jobs.result"
STEPS: Final[Mapping[str, str]] = {
    "queue": "omni_jobs.queue_s",
    "load": "omni_jobs.load_s",
    "run": "omni_jobs.run_s",
    "store": "omni_jobs.store_s",
    "record": "omni_jobs.record_s",
}
"""Attributes by the steps of an attempt: how many seconds each took."""
PAYLOAD_BYTES: Final = "omni_jobs.payload.bytes"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
SEED: Final = "gen_ai.request.seed"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
PARAMETERS: Final[Mapping[str, str]] = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
}
"""Attributes by the names of stages' parameters, as far as the request sets them."""
MADE: Final[Mapping[str, str]] = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "sound_s": "omni_jobs.made.sound_s",
    "pictures": "omni_jobs.made.pictures",
    "frames": "omni_jobs.made.frames",
}
"""Attributes by the amounts that a stage run has made."""


def of_parameters(parameters: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the attributes of what a request sets of a stage's parameters. No text is among them."""
    asked = {attribute: parameters[name] for name, attribute in PARAMETERS.items() if name in parameters}
    return {name: value for name, value in asked.items() if isinstance(value, int | float)}
