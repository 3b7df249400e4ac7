"""The faults of the object store: an S3 server behind a proxy, or a disk."""

import os
import shutil
import signal
from contextlib import suppress

from tests.chaos.faults.fault import Chaos, fault


@fault("s3")
def kill_s3(chaos: Chaos) -> None:
    """kill -9 of the S3 server."""
    chaos.victim.signal(signal.SIGKILL)
    chaos.wait(2, 3)


@fault("s3")
def slow_s3(chaos: Chaos) -> None:
    """S3 answers late."""
    chaos.in_between("s3", "delay", chaos.random.uniform(0.2, 1.0), 3, 6)


@fault("s3")
def s3_errors(chaos: Chaos) -> None:
    """S3 answers many requests with 500."""
    chaos.in_between("s3", "errors", chaos.random.uniform(0.3, 1.0), 2, 5)


@fault("s3")
def s3_wrong_bytes(chaos: Chaos) -> None:
    """Payloads read from S3 have a wrong byte, now and then."""
    chaos.in_between("s3", "corrupt", chaos.random.uniform(0.2, 0.7), 3, 6)


@fault("disk", weight=3)
def fill_disk(chaos: Chaos) -> None:
    """The disk with the objects is full."""
    filler = chaos.stack.objects / ".filler"
    fd = os.open(filler, os.O_CREAT | os.O_WRONLY)
    try:
        with suppress(OSError):
            while True:
                free = shutil.disk_usage(chaos.stack.objects).free
                os.posix_fallocate(fd, os.fstat(fd).st_size, max(4096, free))
        chaos.wait(2, 5)
    finally:
        os.close(fd)
        filler.unlink()
