"""The environments of the embedded stack's processes: none gets a secret of the operator's that it does not use."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from omni_jobs.settings import Settings

_BARE = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_OURS = "OMNI_JOBS_"
# Whose variables begin so: boto3, which only the object store uses, PostgreSQL's client library, and OpenTelemetry.
_OF_OBJECTS, _OF_POSTGRESQL, _OF_TRACES = ("AWS_", "BOTO_"), ("PG",), ("OTEL_",)
_SECRET_NAME = re.compile(
    r"(?:KEY|TOKEN|SECRET|PASS|PASSW(?:OR)?D|PASSPHRASE|PASSCODE|CREDENTIAL|CRED|DSN|JWT|BEARER|COOKIE"
    r"|(?:^|_)(?:PAT|AUTH|AUTHORIZATION)|(?<!^)(?<!^OLD)PWD)S?[0-9]*(?:_|$)",
    re.IGNORECASE,
)
_PASSWORD_IN_VALUE = re.compile(
    r"://[^@\s]*:[^@\s]+@|://[^:/@\s]{16,}@|\b(?:password|passwd|pwd|secret|token)[\"']?\s*[=:]", re.IGNORECASE
)


def bare_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return where programs and libraries, home, language, temporary files and trusted certificates are, and no more.

    For Valkey and the sentinel, which need no setting.
    """
    kept = {*_BARE, *_CERTIFICATES}
    return {name: value for name, value in environment.items() if name in kept or name.startswith("LC_")}


def worker_environment(environment: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return a worker's environment: these settings, and all other variables, because a model may read any of them.

    Those of an object store in S3 or of a PostgreSQL are left out where the settings name none.
    """
    return _foreign(environment, _used(settings)) | settings.to_environment()


def server_environment(environment: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return the environment of the API or the rescuer: these settings, without the servers of remote stages.

    Of the other variables those that may hold a secret are left out, but not those of the object store and database.
    """
    ours = {name: value for name, value in settings.to_environment().items() if name != "OMNI_JOBS_SERVERS"}
    used = _used(settings)
    return {
        name: value
        for name, value in _foreign(environment, used).items()
        if name.startswith(used) or not _may_hold_a_secret(name, value)
    } | ours


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are no settings of ours and hold no secret as far as their names and values say."""
    found = _foreign(environment, ())
    return {name: value for name, value in found.items() if not _may_hold_a_secret(name, value)}


def _may_hold_a_secret(name: str, value: str) -> bool:
    is_proxy = name.lower().endswith("_proxy")  # whoever sends something needs it, with its password
    return _SECRET_NAME.search(name) is not None or (not is_proxy and _PASSWORD_IN_VALUE.search(value) is not None)


def _foreign(environment: Mapping[str, str], used: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that are not ours, with those of the object store and the database only where ``used``."""
    out = tuple(prefix for prefix in (*_OF_OBJECTS, *_OF_POSTGRESQL) if prefix not in used)
    return {
        name: value
        for name, value in environment.items()
        if not (name.startswith(out) or name.upper().startswith(_OURS))  # settings are read in any case
    }


def _used(settings: Settings) -> tuple[str, ...]:
    """Return how the variables begin that the object store and the database of these settings read."""
    traces = _OF_TRACES if settings.tracing == "on" else ()
    objects = _OF_OBJECTS if urlsplit(settings.resolved_storage_url).scheme == "s3" else ()
    return traces + objects + (_OF_POSTGRESQL if settings.resolved_database_url.startswith("postgres") else ())
