"""The keys of an S3 service: boto3 finds them, and a file of keys that cannot be used is a wrong setting.

boto3 passes over a file that is not there or that it may not read, and then has no keys at the first call; of a file
that it cannot parse it quotes lines. So each store looks when it is opened, and tells of the file and never of a line.
"""

import os
from pathlib import Path
from typing import Final, NoReturn

from boto3.session import Session
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ConfigParseError, PartialCredentialsError, ProfileNotFound

from omni_jobs.errors import ConfigError
from omni_jobs.storage.botocore_hooks import keys_file, trusted_file

_VARIABLE: Final = "AWS_SHARED_CREDENTIALS_FILE"
_CONTENT: Final = "write the section [default] with aws_access_key_id and aws_secret_access_key into it"


def open_session() -> tuple[Session, str | None]:
    """Return a session of boto3, and the file of authorities that it trusts, None for those of botocore.

    Raises ConfigError, naming the file, where one of AWS's files is malformed, or where ``AWS_PROFILE`` names a
    profile that no file has.
    """
    try:
        session = Session()
        return session, trusted_file(session)
    except ConfigParseError as error:
        _refuse_malformed(error)
    except ProfileNotFound as error:
        raise ConfigError(f"{error}: correct it", field="AWS_PROFILE") from None


def check_credentials(session: Session) -> None:
    """Raise ConfigError, naming the file, unless boto3 finds keys by its chain: environment, files, instance roles.

    A file of keys that cannot be used is no mistake where the keys come from elsewhere.
    """
    file = keys_file(session)
    try:
        found = session.get_credentials()
    except ConfigParseError as error:
        _refuse_malformed(error)
    except PartialCredentialsError as error:
        what = f"{error.kwargs['cred_var']} is missing beside the other half of the keys ({error.kwargs['provider']})"
        raise ConfigError(f"{file}: {what}: give both", field=_VARIABLE) from None
    except BotoCoreError as error:
        raise ConfigError(f"no keys of the object store: {type(error).__name__}", field=_VARIABLE) from None
    if type(found) is Credentials and not (found.access_key and found.secret_key):
        raise ConfigError(f"a key of the object store is empty in {file}: {_CONTENT}", field=_VARIABLE)
    if found is None:
        raise ConfigError(f"no keys of the object store: {_why_none(file)}", field=_VARIABLE)


def _refuse_malformed(error: ConfigParseError) -> NoReturn:
    """Raise ConfigError for a file that cannot be parsed. What botocore says of its lines is dropped."""
    raise ConfigError(f"{error.kwargs['path']} cannot be parsed: {_CONTENT}", field=_VARIABLE) from None


def _why_none(file: Path) -> str:
    given = "" if os.environ.get(_VARIABLE) else f"set {_VARIABLE}, or "
    try:
        is_empty = not file.read_bytes().strip()
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}; {given}{_remedy(error)}"
    if is_empty:
        return f"{file} is empty: {given}{_CONTENT}"
    profile = os.environ.get("AWS_PROFILE", "default")
    return f"{file} has none in its section [{profile[:80]}]: {given}{_CONTENT}"


def _remedy(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "let the user of this process read it"
    return "make it" if isinstance(error, FileNotFoundError) else "name a file"
