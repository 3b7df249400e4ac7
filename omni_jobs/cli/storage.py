"""The command for the object store. It needs no server, because it comes before the first start of one."""

import time

from omni_jobs.cli import options
from omni_jobs.cli.exits import notice
from omni_jobs.cli.servers import settings_for_one_user
from omni_jobs.cli.terminal import say

_PAUSE_S = 1.0


def prepare(wait_for: options.WaitForOption = 0.0) -> None:
    """Make the bucket or the directory of the object store, unless it is there, and put an object into it.

    Safe to run twice. A service that does not answer yet is asked again for --wait-for seconds; one that refuses is
    not, because it would refuse again: check the credentials, and whether the bucket is yours.

    \b
    Examples:
      omni-jobs storage prepare
      OMNI_JOBS_STORAGE_URL=s3://my-bucket/omni omni-jobs storage prepare --wait-for 90
    """
    from omni_jobs.errors import StorageUnavailable
    from omni_jobs.storage import open_store

    settings = settings_for_one_user(with_database=False)
    store = open_store(settings)
    until, is_told = time.monotonic() + wait_for, False
    while True:
        try:
            store.prepare()
            break
        except StorageUnavailable as error:
            if time.monotonic() >= until:
                raise
            if not is_told:
                notice(f"{error}; asked again for up to {wait_for:g} s")
            is_told = True
            time.sleep(_PAUSE_S)
    say(f"{settings.resolved_storage_url} takes objects")
