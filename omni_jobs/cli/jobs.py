"""The commands for submitted jobs: show, cancel, retry and delete them, and fetch their results."""

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect
from omni_jobs.cli.exits import act_on_each
from omni_jobs.cli.screen import show, show_outcome, show_repeatedly, show_warnings


def status(
    job_id: options.NewestOrJobArgument = None,
    limit: options.LimitOption = 20,
    watch: options.WatchOption = False,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show the newest jobs, or one job with its stages and failed attempts.

    \b
    Examples:
      omni-jobs status --watch
      omni-jobs status job-0193… --json
    """
    from omni_jobs.cli.live import show_progress
    from omni_jobs.cli.tables import job_summary, jobs_table

    with connect(url) as client:
        if job_id is not None:
            job = show_progress(client, job_id) if watch else client.get(job_id)
            show(job, as_json, job_summary)
            show_warnings(job)
        elif watch and not as_json:
            show_repeatedly(lambda: jobs_table(client.list(limit=limit, brief=True).jobs))
        else:
            page = client.list(limit=limit, brief=not as_json)
            show(page, as_json, lambda page: jobs_table(page.jobs))


def list_(
    limit: options.LimitOption = 20,
    cursor: options.CursorOption = None,
    state: options.StatusOption = None,
    pipeline: options.ListPipelineOption = None,
    error_code: options.ErrorCodeOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """List jobs, the newest first.

    With --json the jobs include their results, and a page with large results ends early. While the answer has a
    next_cursor, pass it as --cursor to get the next page.

    \b
    Examples:
      omni-jobs list --status failed
      omni-jobs list --error-code quarantined --json
    """
    from omni_jobs.cli.tables import jobs_table

    with connect(url) as client:
        page = client.list(
            limit=limit, cursor=cursor, status=state, pipeline=pipeline, error_code=error_code, brief=not as_json
        )
    show(page, as_json, lambda page: jobs_table(page.jobs))


def events(job_id: options.JobArgument, url: options.UrlOption = None, as_json: options.JsonOption = False) -> None:
    """Show a job's events, the oldest first.

    \b
    Example:
      omni-jobs events job-0193…
    """
    from omni_jobs.cli.tables import events_table

    with connect(url) as client:
        show(client.events(job_id), as_json, events_table)


def cancel(job_id: options.JobArgument, url: options.UrlOption = None, as_json: options.JsonOption = False) -> None:
    """Cancel a job, and print its state: cancelling while a stage runs. The results of its finished stages stay.

    \b
    Example:
      omni-jobs cancel job-0193…
    """
    with connect(url) as client:
        show(client.cancel(job_id), as_json, lambda job: job.status.value)


def retry(
    job_id: options.JobArgument,
    from_stage: options.FromStageOption = None,
    wait: options.WaitOption = False,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Retry a job that has ended: the stages that did not succeed, and with --from-stage that stage and all after it.

    \b
    Examples:
      omni-jobs retry job-0193…
      omni-jobs retry job-0193… --from-stage talker --wait
    """
    from omni_jobs.cli.live import show_progress

    with connect(url) as client:
        job = client.retry(job_id, from_stage=from_stage)
        if wait:
            show_outcome(show_progress(client, job_id), as_json, None)
        else:
            show(job, as_json, lambda job: job.status.value)


def delete(jobs: options.JobsArgument, url: options.UrlOption = None) -> None:
    """Delete jobs that have ended, with their results and artifacts. This cannot be undone.

    A job that cannot be deleted, because it has not ended or does not exist, is named, and the others are deleted.

    \b
    Example:
      omni-jobs delete job-0193… job-0194…
    """
    with connect(url) as client:
        act_on_each(jobs, client.delete)


def result(
    job_id: options.JobArgument,
    out: options.OutOption = None,
    wait: options.WaitOption = False,
    timeout: options.TimeoutOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Print a job's text and the URLs of its artifacts. With --out, download them. Fails unless the job is completed.

    \b
    Example:
      omni-jobs result job-0193… --out sea     # sea/result.json, sea/text.txt, sea/audio.wav
    """
    from omni_jobs.cli.live import show_progress

    with connect(url) as client:
        job = show_progress(client, job_id, timeout, out) if wait else client.get(job_id)
        if out is not None:
            client.save(job, out)
    show_outcome(job, as_json, out)
