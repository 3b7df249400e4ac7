"""The command for a health check of one process of ours, on its own host. It imports little, because it runs often."""

from omni_jobs.cli import options
from omni_jobs.cli.terminal import say
from omni_jobs.errors import OmniJobsError


def healthy(file: options.BeatFileOption, within: options.BeatsWithinOption = 60.0) -> None:
    """Say whether the process that has this beat file is well. Exit code 1: it is not.

    An API touches the file while it is ready, a worker at each
    renewal of its lease once its engine is loaded, and a rescuer
    after each round that went well. So this needs neither the
    network nor a secret. OMNI_JOBS_BEAT_FILE names the file for
    both, the process and this command.

    \b
    Examples:
      omni-jobs healthy --file /tmp/beat
      omni-jobs healthy --file /tmp/beat --within 180     # a rescuer, whose rounds may be long
    """
    from omni_jobs.metrics.beat_file import seconds_since_beat

    age_s = seconds_since_beat(file)
    if age_s is None:
        raise OmniJobsError(f"no beat yet: {file} is not there")
    if age_s > within:
        raise OmniJobsError(f"the last beat is {age_s:.0f} s old, not {within:g} at most")
    say(f"the last beat is {age_s:.0f} s old")
