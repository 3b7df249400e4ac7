"""Settings of every process: environment variables ``OMNI_JOBS_*``, or arguments of the CLI.

The embedded stack and production differ in URLs alone. A secret may stand in a file that ``OMNI_JOBS_BROKER_URL_FILE``,
``OMNI_JOBS_DATABASE_URL_FILE`` or ``OMNI_JOBS_API_KEY_FILE`` names, so that no password is in an environment. boto3
reads its own file, ``AWS_SHARED_CREDENTIALS_FILE``.
"""

import ipaddress
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from omni_jobs.errors import ConfigError
from omni_jobs.servers import BaseUrl, Server, check_host

Auth = Literal["off", "keys", "proxy"]

_SECRETS: Final = ("broker_url", "database_url", "api_key")
_MAX_SECRET_BYTES: Final = 65_536
# Of the broker's URL: what both redis-py and kombu take.
_TLS_OPTIONS: Final = (
    "ssl_cert_reqs",
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_check_hostname",
)
_OUR_PREFIX: Final = re.compile(r"O(?:MN|NM)[IY]?[_.-]*JOBS?[_.-]*", re.IGNORECASE)  # also misspelt
SECRET_VARIABLES: Final = frozenset(
    {"OMNI_JOBS_SERVERS"} | {f"OMNI_JOBS_{name.upper()}{end}" for name in _SECRETS for end in ("", "_FILE")}
)
"""The variables of settings that hold a secret, or name its file."""
BULK_GROUP_BYTES: Final = 4 << 20  # the lines of a bulk that omni_jobs.api.bulk_lines holds beside the one it reads


class Settings(BaseSettings):
    """The settings of one process; frozen. A name that ends in ``_s`` is in seconds, one in ``_bytes`` in bytes.

    ``scripts/settings-table`` makes the table of docs/settings.md from them and their comments: those right above a
    setting and on its line say what it means, and a comment with an empty line below begins a group.
    """

    model_config = SettingsConfigDict(env_prefix="OMNI_JOBS_", frozen=True, extra="forbid", hide_input_in_errors=True)

    # Services, files and addresses. The defaults are those of the embedded stack.

    # Where SQLite's file and the objects lie by default, and the logs of the embedded stack.
    data_dir: Path = Path("~/.local/share/omni-jobs").expanduser()
    # The database. It may hold a password, as the broker's URL may, and is never shown. None: SQLite in data_dir.
    database_url: Annotated[str | None, Field(repr=False)] = None
    # Redis or Valkey; rediss:// for TLS. It may hold a password. The embedded stack has a broker of its own.
    broker_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    broker_key_prefix: str = ""  # Stands before every key, for a Redis that others use, too.
    storage_url: str | None = None  # file:///directory or s3://bucket/prefix. None: data_dir/objects.
    storage_sync: bool = True  # A put to a local directory returns once the object survives a power loss.
    s3_endpoint_url: str | None = None  # Where servers reach S3. None: AWS.
    s3_public_endpoint_url: str | None = None  # Where clients reach it, for download_url_s. None: at s3_endpoint_url.
    s3_region: str = "us-east-1"  # The region that requests to S3 are signed for.
    # How long the presigned URLs of S3 live to which the API redirects downloads. None: it sends artifacts itself.
    download_url_s: Annotated[int, Field(ge=1, le=3600)] | None = None
    # The directory of the stage configs. If it is not set and the working directory has none: the package's own.
    stage_configs: Path = Path("stage_configs")
    pipelines: Annotated[tuple[str, ...] | None, NoDecode] = None  # The pipelines to serve: a,b. None: all.
    # PIPELINE, or PIPELINE.STAGE for a stage with a model of its own → directory of the checkpoint. PIPELINE may be
    # NAME@VERSION.
    models: dict[str, Path] = {}
    # Name → {url, key or key_file, ca_file} of an OpenAI-compatible server that remote stages may use.
    servers: dict[str, Server] = {}
    spool_dir: Path | None = None  # Where engines leave payloads for their worker. None: /dev/shm or a temp directory.
    # Where workers leave a lock for each GPU, so that those of one load one after another. None: they do not wait.
    load_locks_dir: Path | None = None
    api_host: str = "127.0.0.1"  # Where the API listens: a name or an address. Empty: every address.
    api_port: Annotated[int, Field(ge=0, le=65_535)] = 8000  # 0: a free one.
    # The API's own TLS: its certificate, followed by those of the authorities between, in PEM. None: plain HTTP.
    tls_certificate: Path | None = None
    tls_key: Path | None = None  # The certificate's key. None: it stands in the certificate's file.
    ca_file: Path | None = None  # Certificates (PEM) that the client trusts in place of the system's.
    # The port at which this process shows its metrics to whoever can connect. 0: a free one, which its log names.
    # None: none; the API shows its own at its port as well, to keys with the scope admin.
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    metrics_host: str = "127.0.0.1"  # Where it shows them. Empty: every address.
    # A file that this process touches while it is well, for `omni-jobs healthy` or a monitor. None: none.
    beat_file: Path | None = None
    # The path below which a proxy shows the API, such as /jobs-api, whether it strips it or not.
    root_path: Annotated[str, Field(pattern=r"^((/[A-Za-z0-9._~-]+)*)$", max_length=200)] = ""
    # How the API tells its callers apart. off: not at all. keys: by their API keys. proxy: by tenant_header.
    auth: Auth | None = None  # None: off on a loopback address; on any other the API refuses to start.
    tenant_header: str | None = None  # The header in which a proxy names the tenant, for the auth proxy alone.
    # The URL by which browsers reach the API: a proxy's with TLS, or plain HTTP on purpose. None: not known.
    public_url: BaseUrl | None = None
    # The addresses and networks of proxies whose X-Forwarded-For and -Proto are believed: a,b. *: anybody's.
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ("127.0.0.1", "::1")
    # Spans of jobs by OpenTelemetry, which its own OTEL_… variables configure. They take the extra otel.
    tracing: Literal["on", "off"] = "off"
    log: Literal["json", "text"] = "text"  # The form of log lines: for people, or an object a line.
    api_key: SecretStr | None = None  # The key that the client and the commands send. None: they send none.

    # Engines.

    # The device of this process's stages, in place of the one in their stage configs.
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: the device in the stage config.
    # The host of a worker: `omni-jobs workers drain --host` empties it. None: this machine's name, or the container's.
    host_name: Annotated[str, Field(pattern=r"^[!-~]{1,253}$")] | None = None
    # The share of the GPU's memory that a worker may use. None: the share in the stage config, as where it is empty.
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    # The bytes of a worker's KV cache in the host's memory, on a CPU. None: those in the stage config.
    kv_cache_memory_bytes: Annotated[int, Field(ge=1 << 20)] | None = None

    # Times of workers and of the rescuer, in seconds.

    lease_s: Annotated[float, Field(ge=1, le=300)] = 10.0  # A worker that renews no lease for so long is lost.
    heartbeat_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0  # The pause between two renewals of the lease.
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 10.0  # A stopping worker hands back what it holds after this.
    rescue_every_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0  # The pause between two rounds of the rescuer.
    # A worker with free slots looks so often for stage runs that no doorbell has told it of.
    poll_s: Annotated[float, Field(ge=0.05, le=60)] = 1.0
    progress_every_s: Annotated[float, Field(ge=0.05, le=60)] = 0.5  # The pause between two progress reports.
    watched_every_s: Annotated[float, Field(ge=0.05, le=60)] = 0.1  # The same of a job whose events are streamed.
    cancel_check_s: Annotated[float, Field(ge=0.05, le=60)] = 0.4  # A busy worker checks so often what to cancel.
    stop_limit_s: Annotated[float, Field(ge=1)] = 30.0  # A worker restarts when a stopped stage run goes on longer.
    # A worker restarts when its engine gets on with none of its stage runs for so long: longer than its longest step.
    engine_stall_s: Annotated[float, Field(ge=1)] = 600.0
    # A worker ends when it loads its model for longer, and an embedded stack stops when its start takes longer.
    load_limit_s: Annotated[float, Field(gt=0)] = 1800.0
    stall_after_s: Annotated[float, Field(ge=5)] = 60.0  # A worker restarts when its event loop stands still so long.

    # Celery.

    # Its events of stage runs as tasks. asked: while celery worker -E or control enable_events asks for them.
    task_events: Literal["asked", "off"] = "asked"

    # How long things are kept after their job's end, in seconds.

    keep_payloads_s: Annotated[float, Field(ge=0)] = 3600.0  # For retries and forks; completed jobs keep none unasked.
    keep_inputs_s: Annotated[float, Field(ge=0)] = 86_400.0  # The media of the request.
    keep_artifacts_s: Annotated[float, Field(ge=0)] = 7 * 86_400.0  # The files of the result.
    keep_events_s: Annotated[float, Field(ge=0)] = 7 * 86_400.0  # From when each was written.
    keep_jobs_s: Annotated[float, Field(ge=0)] = 30 * 86_400.0  # The job itself, with its texts and errors.
    keep_usage_s: Annotated[float, Field(ge=0)] = 400 * 86_400.0  # What tenants used, by day.
    keep_audit_s: Annotated[float, Field(ge=0)] = 400 * 86_400.0  # Who did what.
    prune_every_s: Annotated[float, Field(ge=0.1, le=3600)] = 2.0  # The pause between two rounds of the pruner.
    orphan_after_s: Annotated[float, Field(ge=1)] = 3600.0  # An object that no row refers to goes at this age.
    sweep_every_s: Annotated[float, Field(ge=1)] = 600.0  # The pause between two sweeps of the store for such objects.

    # How many jobs may wait, and how much room data may take.

    max_queued_jobs: Annotated[int, Field(ge=1)] = 1_000_000  # Waiting jobs of one pipeline.
    max_queued_jobs_per_tenant: Annotated[int, Field(ge=1)] = 1_000_000  # Waiting jobs of one pipeline and tenant.
    min_free_bytes: Annotated[int, Field(ge=0)] = 256 << 20  # What a local object directory or spool leaves free.
    # The bytes of hidden states that one worker keeps for later stages. None: 8 GiB, or less on a small machine.
    capture_bytes: Annotated[int, Field(ge=1 << 20)] | None = None

    # Limits on the request of a job.

    max_body_bytes: Annotated[int, Field(ge=1024)] = 64 << 20  # One body, or one line of a bulk.
    max_text_bytes: Annotated[int, Field(ge=1024)] = 8 << 20  # All messages together; SQL keeps them.
    max_bulk_answer_bytes: Annotated[int, Field(ge=1024)] = 64 << 20  # On the server's disk; a bulk ends beyond it.
    max_messages: Annotated[int, Field(ge=1)] = 256  # Of one request.
    max_media_parts: Annotated[int, Field(ge=0)] = 32  # Sounds, pictures and videos of one request.
    max_audio_s: Annotated[float, Field(gt=0)] = 600.0  # Of one sound.
    max_audio_samples: Annotated[int, Field(ge=1)] = 120_000_000  # Of all channels: 600 s of stereo at 96 kHz fit.
    max_audio_channels: Annotated[int, Field(ge=1, le=1024)] = 16  # Of one sound.
    max_audio_rate: Annotated[int, Field(ge=4_000)] = 384_000  # The sampling rate of a sound.
    max_video_s: Annotated[float, Field(gt=0)] = 120.0  # Of one video.
    max_video_frames: Annotated[int, Field(ge=1)] = 14_400  # In one video: 120 s at 120 frames a second.
    max_image_pixels: Annotated[int, Field(ge=1)] = 32_000_000  # Of an image, or of a video's frame.
    max_image_scans: Annotated[int, Field(ge=1)] = 100  # Of one JPEG; an encoder makes about ten.
    max_scanned_pixels: Annotated[int, Field(ge=1)] = 640_000_000  # The pixels of a JPEG times its scans.

    # Decoders: the processes that decode all media.

    decoders: Annotated[int, Field(ge=1, le=256)] | None = None  # Their number. None: one for each core, 2 to 8.
    decoders_waiting: Annotated[int, Field(ge=0)] = 64  # Media that may wait for a decoder; one more is answered 503.
    decoders_wait_s: Annotated[float, Field(gt=0)] = 10.0  # The longest wait of a medium for a decoder; then 503.
    decoder_memory_bytes: Annotated[int, Field(ge=64 << 20)] = 1 << 30  # What a decoder may map beside the medium.
    probe_limit_s: Annotated[float, Field(gt=0)] = 20.0  # A decoder's CPU time for all media of one submit.
    decode_limit_s: Annotated[float, Field(gt=0)] = 300.0  # A decoder's CPU time for one medium of a stage run.

    # Media that a request names by URL, and what a remote server's answer links to.

    # off: a URL is refused. hosts: those of fetch_hosts are fetched. public: those of any host of the internet.
    fetch: Literal["off", "hosts", "public"] = "off"
    # Names of hosts, or *.name for all below one: a,b.
    fetch_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    max_fetched_bytes: Annotated[int, Field(ge=1024)] = 64 << 20  # All media of one submit together.
    fetch_limit_s: Annotated[float, Field(gt=0)] = 60.0  # For one medium; and for its wait for a place before.
    max_fetches: Annotated[int, Field(ge=1)] = 32  # At once, in an API process.
    max_fetches_per_tenant: Annotated[int, Field(ge=1)] = 8  # The same of one tenant.

    # Limits of the API server on its clients.

    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()  # Further names of this server: a,b. *: any name.
    max_head_bytes: Annotated[int, Field(ge=1024)] = 64 << 10  # The head of one request.
    max_headers: Annotated[int, Field(ge=1)] = 100  # The number of headers of one request.
    max_connections: Annotated[int, Field(ge=1)] = 1000  # At most half of the files that may be open.
    max_waits: Annotated[int, Field(ge=0)] | None = None  # Long polls at once. None: half of the connections.
    # Of one tenant, where callers are told apart. None: a tenth of the connections.
    max_waits_per_tenant: Annotated[int, Field(ge=0)] | None = None
    # How long a request waits for its job before it is answered 504. OpenAI's clients themselves wait for 600 s.
    wait_limit_s: Annotated[float, Field(gt=0)] = 570.0
    max_held_body_bytes: Annotated[int, Field(ge=1 << 20)] = 128 << 20  # All bodies of unanswered requests together.
    head_limit_s: Annotated[float, Field(gt=0)] = 10.0  # For a head, from the connection or from its first byte.
    body_limit_s: Annotated[float, Field(gt=0)] = 300.0  # For one body, or each max_body_bytes of a bulk.
    silence_limit_s: Annotated[float, Field(gt=0)] = 20.0  # A pause within a body, or in reading an answer.

    # What workers write.

    # A picture's file names its job, beside its seed. Whoever gets the picture then knows the job's id.
    job_ids_in_pictures: bool = False
    inline_payload_bytes: Annotated[int, Field(ge=0, le=1 << 20)] = 4096  # A payload up to this size lives in its row.

    @field_validator("pipelines", "allowed_hosts", "trusted_proxies", "fetch_hosts", mode="before")
    @classmethod
    def _split_names(cls, value: object, info: ValidationInfo) -> object:
        """Split ``a, b`` of the environment into names. No name at all is as if the variable were not set."""
        if not isinstance(value, str):
            return value
        names = tuple(name for part in value.split(",") if (name := part.strip()))
        return names or cls.model_fields[info.field_name or ""].default

    @field_validator("gpu_memory_utilization", mode="before")
    @classmethod
    def _none_if_empty(cls, value: object) -> object:
        """Take an empty text as not set, because docker-compose.yml gives that where the stage has no share in .env."""
        return None if value == "" else value

    @field_validator("api_host", "metrics_host")
    @classmethod
    def _is_host(cls, host: str) -> str:
        """Take an IPv6 address with brackets, too, as it stands in URLs. An empty host is every address."""
        return check_host(host) if host else host

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse what is no address and no network, because it would match no proxy."""
        for proxy in () if proxies == ("*",) else proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ValueError(f"no address, no network and not * alone: {proxy!r:.60}") from None
        return proxies

    @field_validator("fetch_hosts")
    @classmethod
    def _are_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names in lower case. Refuse what is no host's name, because it would match none."""
        return tuple(f"{'*.' * host.startswith('*.')}{check_host(host.removeprefix('*.'))}".lower() for host in hosts)

    @field_validator("max_held_body_bytes")
    @classmethod
    def _holds_a_body(cls, limit: int, info: ValidationInfo) -> int:
        """Refuse a limit below the longest line of a bulk and the lines held with it: the API could never take it."""
        needed = info.data.get("max_body_bytes", 0) + BULK_GROUP_BYTES
        if limit < needed:
            raise ValueError(
                f"must be at least {needed}: OMNI_JOBS_MAX_BODY_BYTES, and {BULK_GROUP_BYTES} for a bulk's other lines"
            )
        return limit

    @field_validator("broker_url")
    @classmethod
    def _is_redis(cls, url: SecretStr) -> SecretStr:
        """Refuse a URL that Celery or redis-py would refuse. The error does not show it: it may hold a password."""
        try:
            parts = urlsplit(url.get_secret_value())
            port, number = parts.port, parts.path.strip("/") or "0"
            if parts.hostname:
                check_host(parts.hostname)
        except ValueError:
            raise ValueError("not a URL") from None
        is_plain = parts.scheme == "redis" and not parts.query
        is_small = url.get_secret_value().startswith(f"{parts.scheme}://")  # redis-py takes no REDIS://
        if (
            not is_small
            or not (is_plain or parts.scheme == "rediss")
            or not parts.hostname
            or port == 0
            or not number.isdecimal()
        ):
            raise ValueError("not redis://[:password@]host[:port][/number], nor rediss://…")
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in _TLS_OPTIONS or (name == "ssl_cert_reqs" and value not in ("required", "optional", "none")):
                options = ", ".join(_TLS_OPTIONS)
                raise ValueError(f"of rediss:// the options are {options}, the first required, optional or none")
        return url

    @property
    def resolved_auth(self) -> Auth:
        """How the API tells its callers apart.

        Raises ConfigError if it is not set and the API is to serve others than this machine, or if ``tenant_header``
        is set without the auth ``proxy``, or ``proxy`` without it.
        """
        if (self.auth == "proxy") != (self.tenant_header is not None):
            raise ConfigError("proxy needs OMNI_JOBS_TENANT_HEADER, which nothing else reads", field="OMNI_JOBS_AUTH")
        if self.auth is None and not self.serves_this_machine_alone:
            raise ConfigError(
                f"set it to keys, proxy or off, because the API would serve other machines, on {self.api_host}",
                field="OMNI_JOBS_AUTH",
            )
        return self.auth or "off"

    @property
    def serves_this_machine_alone(self) -> bool:
        """Whether the API listens on a loopback address, so that no other machine reaches it but through a proxy."""
        return _is_loopback(self.api_host)

    @property
    def resolved_database_url(self) -> str:
        """The URL of the database; by default that of a SQLite file in ``data_dir``."""
        return self.database_url or f"sqlite:///{self.data_dir.expanduser().resolve() / 'omni-jobs.sqlite'}"

    @property
    def resolved_storage_url(self) -> str:
        """The URL of the object store; by default that of the directory ``objects`` in ``data_dir``."""
        return self.storage_url or (self.data_dir.expanduser().resolve() / "objects").as_uri()

    @property
    def resolved_stage_configs(self) -> Path:
        """The directory of the stage configs; by default the working directory's, or the package's if it has none."""
        if "stage_configs" not in self.model_fields_set and not self.stage_configs.is_dir():
            return packaged_directory("stage_configs")
        return self.stage_configs.expanduser().resolve()

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables, by name, from which another process reads these same settings.

        Defaults are left out, and the API key, which no server needs. A secret that came from a file gives the
        variable that names the file; any other stands in the clear.
        """
        variables = {}
        for name in self.model_fields_set - {"api_key"}:
            value = getattr(self, name)
            if name in _SECRETS and (path := self._file_of(name)) is not None:
                variables[_file_variable(name)] = str(path)
                continue
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            elif isinstance(value, tuple):
                value = ",".join(value)
            elif name == "servers":
                value = json.dumps({key: server.to_json() for key, server in value.items()})
            elif isinstance(value, dict):
                value = json.dumps({key: str(part) for key, part in value.items()})
            variable = f"OMNI_JOBS_{name.upper()}"
            if value is not None and (str(value) or Settings.model_fields[name].default != ""):
                variables[variable] = str(value)
        return variables

    def _file_of(self, name: str) -> Path | None:
        """Return the file that a secret came from, or None if it came from elsewhere."""
        path = _variables().get(_file_variable(name))
        if not path:
            return None
        value = getattr(self, name)
        plain = value.get_secret_value() if isinstance(value, SecretStr) else value
        return Path(path).absolute() if read_secret(_file_variable(name), path) == plain else None


_MAY_BE_EMPTY: Final = frozenset(
    f"OMNI_JOBS_{name.upper()}"
    for name, field in Settings.model_fields.items()
    if name in ("api_host", "metrics_host", "gpu_memory_utilization") or NoDecode in field.metadata
)
"""The variables that may be empty: lists and a share, then as if not set, and hosts, then every address."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _file_variable(name: str) -> str:
    return f"OMNI_JOBS_{name.upper()}_FILE"


def _variables() -> dict[str, str]:
    """Return the environment by the names in capitals, because pydantic reads settings of any case; the last counts."""
    return {name.upper(): value for name, value in os.environ.items()}


def _refuse_empty(names: Iterable[str]) -> None:
    """Raise ConfigError for the first of these variables that is set and empty."""
    variables = _variables()
    for name in sorted(names):
        if variables.get(name) == "":  # a forgotten secret, say: a default in its place would do quite another thing
            raise ConfigError("is empty: give it a value, or unset it", field=name)


def _secret_of_file(name: str) -> str | None:
    """Return a secret that stands in a file, by its setting; None without. Raises ConfigError, naming the variable."""
    variable, variables = _file_variable(name), _variables()
    path = variables.get(variable)
    if path is None:
        return None
    if variable.removesuffix("_FILE") in variables:
        raise ConfigError(f"give this or {variable.removesuffix('_FILE')}, not both", field=variable)
    return read_secret(variable, path)


def read_secret(variable: str, path: str) -> str:
    """Return the one line of a secret's file, without its end. Raises ConfigError, naming the variable."""
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


def read_settings(on_unknown: Callable[[str], None] | None = None) -> Settings:
    """Read the settings from the environment and the files of secrets. Raises ConfigError, naming the variable.

    ``on_unknown`` is told a line of text for each variable that looks like a setting and is none.
    """
    if on_unknown is not None:
        for line in unknown_variables(os.environ):
            on_unknown(line)
    _refuse_empty(_known_variables() - _MAY_BE_EMPTY)
    secrets: dict[str, Any] = {name: secret for name in _SECRETS if (secret := _secret_of_file(name)) is not None}
    try:
        return Settings(**secrets)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        from_file = name in secrets
        variable = _file_variable(name) if from_file else f"OMNI_JOBS_{name.upper()}"
        raise ConfigError(first["msg"].removeprefix("Value error, "), field=variable) from None
    except SettingsError as error:
        raise ConfigError(f"an OMNI_JOBS_ variable cannot be read: {error}") from error


def read_api_key() -> str | None:
    """Return the key that the client sends, from its variable or its file; None without. Reads no other setting.

    Raises ConfigError, naming the variable.
    """
    variable = "OMNI_JOBS_API_KEY"
    _refuse_empty((variable, f"{variable}_FILE"))
    return _secret_of_file("api_key") or _variables().get(variable)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a line of text for each ``OMNI_JOBS_…`` variable that nothing reads, with the known name nearest to it.

    One whose prefix is misspelt counts, such as ``OMNIJOBS_…``, if the rest is the name of a setting, or nearly so.
    """
    known = {name.removeprefix("OMNI_JOBS_") for name in _known_variables()}
    lines = []
    for name in sorted(environment):
        found = _OUR_PREFIX.match(name)
        if found is None:
            continue
        is_ours, rest = found[0].upper() == "OMNI_JOBS_", name[found.end() :].upper()
        if is_ours and rest in known and (rest != "URL" or name.isupper()):  # the client's URL is read in capitals
            continue
        near = get_close_matches(rest, known, n=1)
        if near or is_ours:
            lines.append(f"nothing reads the variable {name}" + (f": is OMNI_JOBS_{near[0]} meant?" if near else ""))
    return lines


def _known_variables() -> set[str]:
    """Return the names of all variables that something reads."""
    names = {*Settings.model_fields, *(f"{name}_file" for name in _SECRETS), "url"}
    return {f"OMNI_JOBS_{name.upper()}" for name in names}


def packaged_directory(name: Literal["stage_configs", "migrations"]) -> Path:
    """Return the package's own directory of this name: in a wheel inside ``omni_jobs``, in a checkout beside it."""
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
