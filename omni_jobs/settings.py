"""Settings of every process: environment variables ``OMNI_JOBS_*`` or arguments of the CLI.

No setting differs between the embedded stack and production but URLs.

A secret may stand in a file instead: ``OMNI_JOBS_BROKER_URL_FILE`` and ``OMNI_JOBS_DATABASE_URL_FILE`` name it, so that
no password is in an environment. boto3 reads its own file: ``AWS_SHARED_CREDENTIALS_FILE``.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from omni_jobs.errors import ConfigError

__all__ = ["Settings", "packaged_directory", "read_settings", "settings"]


_SECRETS: Final = ("broker_url", "database_url")
_MAX_SECRET_BYTES: Final = 65_536
_BULK_GROUP_BYTES: Final = 4 << 20  # lines that omni_jobs.api.routes.bulk holds beside the one that is coming in


class Settings(BaseSettings):
    """One process's settings; frozen."""

    model_config = SettingsConfigDict(env_prefix="OMNI_JOBS_", frozen=True, extra="forbid")

    # Where everything is. The defaults are the embedded stack's data directory.
    data_dir: Path = Path("~/.local/share/omni-jobs").expanduser()
    # Holds a password, as broker_url does: neither is ever shown. None: SQLite in data_dir.
    database_url: Annotated[str | None, Field(repr=False)] = None
    broker_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    broker_key_prefix: str = ""  # before every key, where a Redis is shared
    storage_url: str | None = None  # file:///dir or s3://bucket/prefix; None: data_dir/objects
    storage_sync: bool = True  # local directory: an object survives a power loss once it is put
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
    load_limit_s: Annotated[float, Field(gt=0)] = 1800.0  # a worker still loading its model by then ends, to start anew
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

    capture_bytes: Annotated[int, Field(ge=1 << 20)] | None = None  # of hidden states in a worker; None: 8 GiB or less

    # Limits on what a client may send.
    max_body_bytes: Annotated[int, Field(ge=1024)] = 64 << 20
    max_text_bytes: Annotated[int, Field(ge=1024)] = 8 << 20  # of all messages together; it is kept in SQL
    max_bulk_answer_bytes: Annotated[int, Field(ge=1024)] = 64 << 20  # on the disk; beyond it no line is looked at
    max_messages: Annotated[int, Field(ge=1)] = 256
    max_media_parts: Annotated[int, Field(ge=0)] = 32
    max_audio_s: Annotated[float, Field(gt=0)] = 600.0
    max_audio_samples: Annotated[int, Field(ge=1)] = 120_000_000  # of all channels: 600 s of stereo at 96 kHz fit
    max_audio_channels: Annotated[int, Field(ge=1, le=1024)] = 16
    max_audio_rate: Annotated[int, Field(ge=4_000)] = 384_000  # Hz
    max_video_s: Annotated[float, Field(gt=0)] = 120.0
    max_video_frames: Annotated[int, Field(ge=1)] = 14_400  # in the clip: 120 s at 120 a second
    max_image_pixels: Annotated[int, Field(ge=1)] = 32_000_000  # of a video's frame as well
    max_image_scans: Annotated[int, Field(ge=1)] = 100  # of a JPEG; an encoder makes about ten
    max_scanned_pixels: Annotated[int, Field(ge=1)] = 640_000_000  # a JPEG's pixels times its scans

    # Decoders: the processes that all media are decoded in.
    decoders: Annotated[int, Field(ge=1, le=256)] | None = None  # None: one a core, 2 to 8
    decoders_waiting: Annotated[int, Field(ge=0)] = 64  # media of submits that wait for one, beyond: 503
    decoders_wait_s: Annotated[float, Field(gt=0)] = 10.0  # so long at most, then 503
    decoder_memory_bytes: Annotated[int, Field(ge=64 << 20)] = 1 << 30  # one may map beyond itself and the medium
    probe_limit_s: Annotated[float, Field(gt=0)] = 20.0  # a decoder's time for all media of one submit
    decode_limit_s: Annotated[float, Field(gt=0)] = 300.0  # a decoder's time for one medium of a stage run

    # What the API takes from one client, or from all together, before it answers.
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()  # names clients call it by: a,b; *: any
    max_head_bytes: Annotated[int, Field(ge=1024)] = 64 << 10
    max_headers: Annotated[int, Field(ge=1)] = 100
    max_connections: Annotated[int, Field(ge=1)] = 1000  # fewer where the process may not open so many files
    max_held_body_bytes: Annotated[int, Field(ge=1 << 20)] = 128 << 20  # of all requests that are not answered yet
    head_limit_s: Annotated[float, Field(gt=0)] = 10.0  # from a connection's begin, or a head's first byte, to its end
    body_limit_s: Annotated[float, Field(gt=0)] = 300.0  # waiting for one body; again for each max_body_bytes of a bulk
    silence_limit_s: Annotated[float, Field(gt=0)] = 20.0  # within a body, or of a client that does not read its answer

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

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        """``a, b`` of the environment as names."""
        if not isinstance(value, str):
            return value
        return tuple(name for part in value.split(",") if (name := part.strip()))

    @field_validator("max_held_body_bytes")
    @classmethod
    def _holds_a_body(cls, limit: int, info: ValidationInfo) -> int:
        """A longest line of a bulk has to fit, with the lines before it: else it were told to come back for ever."""
        needed = info.data.get("max_body_bytes", 0) + _BULK_GROUP_BYTES
        if limit < needed:
            raise ValueError(
                f"must be at least {needed}: OMNI_JOBS_MAX_BODY_BYTES, and {_BULK_GROUP_BYTES} for a bulk's other lines"
            )
        return limit

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
            return packaged_directory("stage_configs")
        return self.stage_configs.expanduser().resolve()

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *args: Any, **kwargs: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return *super().settings_customise_sources(settings_cls, init_settings, *args, **kwargs), _SecretFiles(cls)

    def to_environment(self) -> dict[str, str]:
        """The environment variables from which another process reads these same settings.

        A secret that came from a file stays there: the variable that names the file is handed on.
        """
        found = {}
        for name in self.model_fields_set:
            value = getattr(self, name)
            if name in _SECRETS and (path := self._file_of(name)) is not None:
                found[_file_variable(name)] = str(path)
                continue
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            elif isinstance(value, tuple):
                value = ",".join(value)
            elif isinstance(value, dict):
                value = json.dumps({key: str(part) for key, part in value.items()})
            if value is not None:
                found[f"OMNI_JOBS_{name.upper()}"] = str(value)
        return found

    def _file_of(self, name: str) -> Path | None:
        """The file that the secret came from, where there is one."""
        path = os.environ.get(_file_variable(name))
        if not path:
            return None
        value = getattr(self, name)
        plain = value.get_secret_value() if isinstance(value, SecretStr) else value
        return Path(path).absolute() if _read_secret(_file_variable(name), path) == plain else None

    @property
    def resolved_storage_url(self) -> str:
        return self.storage_url or (self.data_dir.expanduser().resolve() / "objects").as_uri()


class _SecretFiles(PydanticBaseSettingsSource):
    """What ``OMNI_JOBS_<NAME>_FILE`` names. Raises ConfigError naming the variable, never the content."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        variable = _file_variable(field_name)
        path = os.environ.get(variable)
        if path is None:
            return None, field_name, False
        if variable.removesuffix("_FILE") in os.environ:
            raise ConfigError(f"give this or {variable.removesuffix('_FILE')}, not both", field=variable)
        return _read_secret(variable, path), field_name, False

    def __call__(self) -> dict[str, Any]:
        given = {name: self.get_field_value(self.settings_cls.model_fields[name], name)[0] for name in _SECRETS}
        return {name: value for name, value in given.items() if value is not None}


def _file_variable(name: str) -> str:
    return f"OMNI_JOBS_{name.upper()}_FILE"


def _read_secret(variable: str, path: str) -> str:
    """The file's one line, without the line's end. Raises ConfigError."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_SECRET_BYTES + 1)
        text = content.decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", field=variable) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", field=variable) from None
    if not text or len(content) > _MAX_SECRET_BYTES or any(character in text for character in "\r\n\0"):
        raise ConfigError(f"{path} has to hold one line, the secret itself", field=variable)
    return text


def read_settings() -> Settings:
    """The settings of the environment as it is now. Raises ConfigError naming the variable."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        from_file = name in _SECRETS and _file_variable(name) in os.environ
        variable = _file_variable(name) if from_file else f"OMNI_JOBS_{name.upper()}"
        raise ConfigError(first["msg"].removeprefix("Value error, "), field=variable) from None
    except SettingsError as error:
        raise ConfigError(f"an OMNI_JOBS_ variable cannot be read: {error}") from error


@lru_cache(maxsize=1)
def settings() -> Settings:
    """This process's settings, read once."""
    return read_settings()


def packaged_directory(name: Literal["stage_configs", "migrations"]) -> Path:
    """Return the directory of files that come with the package.

    A wheel carries it inside ``omni_jobs``; a checkout has it beside ``omni_jobs``.
    """
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
