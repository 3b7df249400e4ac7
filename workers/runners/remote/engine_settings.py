"""``RemoteEngine``: what a stage config says under ``engine`` for a remote stage."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.engine_settings import EngineSettings
from workers.runners.remote.parameters import Endpoint

if TYPE_CHECKING:
    from omni_jobs.pipelines.stage_config import StageConfig

_OURS = frozenset(
    {"model", "messages", "input", "prompt", "file", "stream", "stream_options", "n", "modalities", "store"}
)


class RemoteEngine(EngineSettings):
    """A server of the settings, its endpoint and model, and how patient a stage run is with it.

    A stage run waits, without its time limit and its failures counting, while the server cannot be reached or says
    that it is busy. It tries again by itself when an answer is lost on the way. Names that end in ``_s`` are seconds.
    """

    server: Annotated[str, Field(min_length=1, max_length=100, description="a name of OMNI_JOBS_SERVERS")]
    endpoint: Endpoint
    model: Annotated[str, Field(min_length=1, max_length=256, description="the server's name of the model")]

    # What is asked.
    stream: Annotated[bool, Field(description="chat: text comes as it is made, so jobs have progress")] = True
    speaks: Annotated[bool, Field(description="chat: the model speaks, too, when a job wants audio")] = False
    system: Annotated[str | None, Field(max_length=65_536, description="a system message before a job's own")] = None
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    needs_picture: Annotated[bool, Field(description="images, videos: refuse a job that brings none")] = False
    send_seed: Annotated[bool, Field(description="chat, images, videos: send the job's seed")] = True
    extra_body: Annotated[
        dict[str, JsonValue],
        Field(default_factory=dict, description="further fields of each request; null leaves out one of ours"),
    ]

    # How patient a stage run is.
    connect_s: Annotated[float, Field(gt=0, le=300)] = 5.0
    silence_s: Annotated[float, Field(gt=0, le=86_400, description="before and between an answer's pieces")] = 300.0
    total_s: Annotated[float, Field(gt=0, le=86_400, description="for one request and its answer")] = 3600.0
    wait_s: Annotated[float, Field(ge=0, le=86_400, description="for a server that is away or busy, altogether")] = (
        600.0
    )
    longest_pause_s: Annotated[float, Field(gt=0, le=3600, description="of what Retry-After says")] = 60.0
    tries: Annotated[int, Field(ge=1, le=20, description="of one stage run, when answers are lost on the way")] = 3
    poll_s: Annotated[float, Field(gt=0, le=60, description="videos: between two looks at one")] = 1.0

    max_answer_bytes: Annotated[int, Field(ge=1024, le=4 << 30)] = 64 << 20
    keep_videos: Annotated[bool, Field(description="videos: leave them on the server once they are fetched")] = False

    @property
    def takes_tools(self) -> bool:
        return self.endpoint == "chat"

    @field_validator("extra_body")
    @classmethod
    def _leaves_ours(cls, extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if ours := sorted(_OURS & set(extra)):
            raise ValueError(f"{', '.join(ours)}: set by the stage itself")
        return extra

    @classmethod
    def of(cls, stage: "StageConfig") -> "RemoteEngine":
        """Return a stage's settings. Raises ConfigError for a stage of another kind."""
        if not isinstance(stage.engine_settings, cls):
            raise ConfigError(f"processor {stage.processor} is for remote stages", field="processor", stage=stage.name)
        return stage.engine_settings

    def decisive(self) -> dict[str, Any]:
        """Return those settings that decide a job's result. Which server answers is the operator's to change."""
        names = {"endpoint", "model", "speaks", "system", "extra_body"}
        return self.model_dump(mode="json", include=names, exclude_defaults=True)
