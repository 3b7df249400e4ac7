"""Settings of every process: environment variables ``OMNI_JOBS_*`` or arguments of the CLI.

No setting differs between the embedded stack and production but URLs.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from omni_jobs.bundled import bundled
from omni_jobs.errors import ConfigError

__all__ = ["Settings", "read_settings", "settings"]


class Settings(BaseSettings):
    """One process's settings; frozen."""

    model_config = SettingsConfigDict(env_prefix="OMNI_JOBS_", frozen=True, extra="forbid")

    # Where everything is. The defaults are the embedded stack's data directory.
    data_dir: Path = Path("~/.local/share/omni-jobs").expanduser()
    database_url: str | None = None  # None: SQLite in data_dir
    broker_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    broker_key_prefix: str = ""  # before every key, where a Redis is shared
    storage_url: str | None = None  # file:///dir or s3://bucket/prefix; None: data_dir/objects
    storage_sync: bool = True  # local directory: an object survives a power loss once it is put
    host_cache_dir: Path | None = None  # where workers of one host keep payloads for each other: in /dev/shm; None: not
    host_cache_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    s3_endpoint_url: str | None = None  # None: AWS
    s3_region: str = "us-east-1"
    stage_configs: Path = Path("stage_configs")
    pipelines: Annotated[tuple[str, ...] | None, NoDecode] = None  # those that are served: a,b; None: all there are
    models: dict[str, Path] = {}  # pipeline name → checkpoint directory
    spool_dir: Path | None = None  # where engines leave payloads for the worker; None: /dev/shm or a temp dir
    api_host: str = "127.0.0.1"
    api_port: Annotated[int, Field(ge=0, le=65_535)] = 8000

    # The device of this process's stages, over what their stage configs say.
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: as the stage config says
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None  # of its GPU; None: the config's

    # Time, in seconds.
    lease_s: Annotated[float, Field(ge=1, le=300)] = 10.0  # a worker silent for this long has lost its stage runs
    heartbeat_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0  # renews the lease, learns of cancels
    drain_s: Annotated[float, Field(ge=0, le=3600)] = (
        10.0  # a stopping worker finishes what it can, hands back the rest
    )
    rescue_every_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    announce_after_s: Annotated[float, Field(ge=0.5, le=300)] = (
        3.0  # queued this long without being claimed: hint again
    )
    progress_every_s: Annotated[float, Field(ge=0.05, le=60)] = 0.5
    cancel_check_s: Annotated[float, Field(ge=0.05, le=60)] = 0.4  # a worker with something in flight looks so often
    stop_limit_s: Annotated[float, Field(ge=1)] = 10.0  # a stage run told to stop must; else its worker starts anew
    stall_after_s: Annotated[float, Field(ge=5)] = 60.0  # room and work, and nothing taken: the worker starts anew

    # How long things are kept, in seconds after the job's end.
    keep_payloads_s: Annotated[float, Field(ge=0)] = 3600.0  # of jobs that failed, for a retry; completed: none
    keep_inputs_s: Annotated[float, Field(ge=0)] = 86_400.0  # the request's media
    keep_artifacts_s: Annotated[float, Field(ge=0)] = 7 * 86_400.0
    keep_events_s: Annotated[float, Field(ge=0)] = 7 * 86_400.0
    keep_jobs_s: Annotated[float, Field(ge=0)] = 30 * 86_400.0
    prune_every_s: Annotated[float, Field(ge=0.1, le=3600)] = 2.0
    orphan_after_s: Annotated[float, Field(ge=1)] = 3600.0  # objects nobody refers to, since they were stored
    sweep_every_s: Annotated[float, Field(ge=1)] = 600.0  # looks for them in the whole store

    # How much may wait, and the room it may take.
    max_queued_jobs: Annotated[int, Field(ge=1)] = 1_000_000  # per pipeline
    max_queued_jobs_per_tenant: Annotated[int, Field(ge=1)] = 1_000_000  # per pipeline and tenant
    tenant_header: str | None = None  # names the tenant, where a proxy in front sets it; None: all are one
    min_free_bytes: Annotated[int, Field(ge=0)] = 256 << 20  # a local object directory or spool refuses below it

    # Limits on what a client may send.
    max_body_bytes: Annotated[int, Field(ge=1024)] = 64 << 20
    max_text_bytes: Annotated[int, Field(ge=1024)] = 8 << 20  # of all messages together; it is kept in SQL
    max_messages: Annotated[int, Field(ge=1)] = 256
    max_media_parts: Annotated[int, Field(ge=0)] = 32
    max_audio_s: Annotated[float, Field(gt=0)] = 600.0
    max_video_s: Annotated[float, Field(gt=0)] = 120.0
    max_image_pixels: Annotated[int, Field(ge=1)] = 32_000_000

    # How much goes at once.
    hints_per_message: Annotated[int, Field(ge=1, le=1024)] = 64  # at most; and a quarter of a stage's slots
    inline_payload_bytes: Annotated[int, Field(ge=0, le=1 << 20)] = 4096  # smaller payloads live in their SQL row

    @field_validator("pipelines", mode="before")
    @classmethod
    def _comma_separated(cls, value: object) -> object:
        """``a, b`` of the environment as names; nothing between the commas is None, as if it were not set."""
        if not isinstance(value, str):
            return value
        return tuple(name for part in value.split(",") if (name := part.strip())) or None

    @field_validator("broker_url")
    @classmethod
    def _is_redis(cls, url: SecretStr) -> SecretStr:
        """What Celery and redis-py both take. What it says instead is not shown: it may hold a password."""
        try:
            parts = urlsplit(url.get_secret_value())
            port, number = parts.port, parts.path.strip("/") or "0"
        except ValueError:
            raise ValueError("not a URL") from None
        is_plain = parts.scheme == "redis" and not parts.query
        if not (is_plain or parts.scheme == "rediss") or not parts.hostname or port == 0 or not number.isdecimal():
            raise ValueError("not redis://[:password@]host[:port][/number], nor rediss://…")
        return url

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir.expanduser().resolve() / 'omni-jobs.sqlite'}"

    @property
    def resolved_stage_configs(self) -> Path:
        """Those of the setting; unset, those of the working directory, or else the package's own."""
        if "stage_configs" not in self.model_fields_set and not self.stage_configs.is_dir():
            return bundled("stage_configs")
        return self.stage_configs.expanduser().resolve()

    def to_environment(self) -> dict[str, str]:
        """The environment variables from which another process reads these same settings."""
        found = {}
        for name in self.model_fields_set:
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            elif isinstance(value, tuple):
                value = ",".join(value)
            elif isinstance(value, dict):
                value = json.dumps({key: str(part) for key, part in value.items()})
            if value is not None:
                found[f"OMNI_JOBS_{name.upper()}"] = str(value)
        return found

    @property
    def resolved_storage_url(self) -> str:
        return self.storage_url or (self.data_dir.expanduser().resolve() / "objects").as_uri()


def read_settings() -> Settings:
    """The settings of the environment as it is now. Raises ConfigError naming the variable."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigError(first["msg"].removeprefix("Value error, "), field=f"OMNI_JOBS_{name.upper()}") from None
    except SettingsError as error:
        raise ConfigError(f"an OMNI_JOBS_ variable cannot be read: {error}") from error


@lru_cache(maxsize=1)
def settings() -> Settings:
    """This process's settings, read once."""
    return read_settings()
