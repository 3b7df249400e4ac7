"""The command for a health check of one process of ours, on its own host and with its own settings."""

from omni_jobs.cli import options
from omni_jobs.cli.terminal import say
from omni_jobs.errors import ConfigError, OmniJobsError
from omni_jobs.metrics.beat_file import seconds_since_beat
from omni_jobs.settings import read_settings


def healthy(within: options.BeatsWithinOption = 60.0) -> None:
    """Say whether the process with this OMNI_JOBS_BEAT_FILE is well. Exit code 1: it is not.

    An API touches the file while it is ready, a worker at each
    renewal of its lease once its engine is loaded, and a rescuer
    after each round that went well. So this needs neither the
    network nor a secret.

    \b
    Examples:
      OMNI_JOBS_BEAT_FILE=/tmp/beat omni-jobs healthy
      OMNI_JOBS_BEAT_FILE=/tmp/beat omni-jobs healthy --within 180     # a rescuer, whose rounds may be long
    """
    path = read_settings().beat_file
    if path is None:
        raise ConfigError("names no file, so nothing tells of a process", field="OMNI_JOBS_BEAT_FILE")
    age_s = seconds_since_beat(path)
    if age_s is None:
        raise OmniJobsError(f"no beat yet: {path} is not there")
    if age_s > within:
        raise OmniJobsError(f"the last beat is {age_s:.0f} s old, not {within:g} at most")
    say(f"the last beat is {age_s:.0f} s old")
