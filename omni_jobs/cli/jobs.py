"""The commands for submitted jobs: show, cancel, retry, advance and delete them, and fetch their results."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect
from omni_jobs.cli.exits import act_on_each
from omni_jobs.cli.many_jobs import act_on_many, check_target, pairs
from omni_jobs.cli.screen import show, show_outcome, show_repeatedly, show_warnings

if TYPE_CHECKING:
    from omni_jobs.views import JobView


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
    stage: options.ListStageOption = None,
    metadata: options.ListMetadataOption = None,
    created_after: options.CreatedAfterOption = None,
    created_before: options.CreatedBeforeOption = None,
    tenant: options.ListTenantOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """List jobs that match all options, the newest first.

    With --json the jobs include their results, and a page with large results ends early. While the answer has a
    next_cursor, pass it as --cursor to get the next page.

    \b
    Examples:
      omni-jobs list --status failed
      omni-jobs list --error-code quarantined --json
      omni-jobs list --metadata project=sea --created-after 2026-01-05T00:00:00Z
    """
    from omni_jobs.cli.tables import jobs_table

    wanted: dict[str, Any] = {"status": state, "pipeline": pipeline, "error_code": error_code, "stage": stage}
    wanted |= {"created_after": created_after, "created_before": created_before, "tenant": tenant}
    wanted["metadata"] = pairs(metadata or (), "--metadata")
    with connect(url) as client:
        page = client.list(limit=limit, cursor=cursor, brief=not as_json, **wanted)
        while page.next_cursor is not None and not page.jobs:  # a page of jobs that were looked at, and none matched
            page = client.list(limit=limit, cursor=page.next_cursor, brief=not as_json, **wanted)
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


def cancel(
    job_id: options.OneOrFilteredArgument = None,
    filters: options.FilterOption = None,
    dry_run: options.CountOption = False,
    yes: options.YesOption = False,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Cancel a job, and print its state: cancelling while a stage runs. The results of its finished stages stay.

    With --filter all jobs that match and have not ended are cancelled, after a question.

    \b
    Examples:
      omni-jobs cancel job-0193…
      omni-jobs cancel --filter pipeline=echo --filter status=queued --dry-run
    """
    check_target(job_id, filters, dry_run)
    with connect(url) as client:
        if job_id is not None:
            show(client.cancel(job_id), as_json, lambda job: job.status.value)
        else:
            act_on_many(client.cancel_all, "cancel", filters or (), dry_run=dry_run, is_sure=yes, as_json=as_json)


def retry(
    job_id: options.OneOrFilteredArgument = None,
    from_stage: options.FromStageOption = None,
    version: options.OnVersionOption = None,
    wait: options.WaitOption = False,
    timeout: options.TimeoutOption = None,
    filters: options.FilterOption = None,
    dry_run: options.CountOption = False,
    yes: options.YesOption = False,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Retry a job that has ended: the stages that did not succeed, and with --from-stage that stage and all after it.

    With --filter all jobs that match and have failed, expired or been cancelled are retried, after a question.
    With --version jobs go on with another version of their pipeline. Those that wait for a version which no worker
    serves any more have to be cancelled first.

    \b
    Examples:
      omni-jobs retry --filter error_code=remote_unavailable --yes
      omni-jobs retry job-0193…
      omni-jobs retry job-0193… --from-stage talker --wait
      omni-jobs retry job-0193… --version 2
      omni-jobs retry --filter pipeline=echo@1 --filter status=cancelled --version 2
    """
    from omni_jobs.cli.live import show_progress

    check_target(job_id, filters, dry_run, wait)
    with connect(url) as client:
        if job_id is None:
            action = partial(client.retry_all, from_stage=from_stage, version=version)
            act_on_many(action, "retry", filters or (), dry_run=dry_run, is_sure=yes, as_json=as_json)
            return
        job = client.retry(job_id, from_stage=from_stage, version=version)
        if wait:
            show_outcome(show_progress(client, job_id, timeout), as_json, None)
        else:
            show(job, as_json, lambda job: job.status.value)


def advance(
    job_id: options.OneOrFilteredArgument = None,
    filters: options.FilterOption = None,
    dry_run: options.CountOption = False,
    yes: options.YesOption = False,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Bring a job that nobody has started to the front of its tenant's line, and print why it still waits.

    Other tenants wait for no job longer.

    With --filter all jobs that match and are queued are advanced, after a question.

    \b
    Examples:
      omni-jobs advance job-0193…
      omni-jobs advance --filter metadata=project=sea --yes
    """
    check_target(job_id, filters, dry_run)
    with connect(url) as client:
        if job_id is not None:
            show(client.advance(job_id), as_json, _standing)
        else:
            act_on_many(client.advance_all, "advance", filters or (), dry_run=dry_run, is_sure=yes, as_json=as_json)


def delete(
    jobs: options.SomeOrFilteredArgument = None,
    filters: options.FilterOption = None,
    dry_run: options.CountOption = False,
    yes: options.YesOption = False,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Delete jobs that have ended, with their results and artifacts. This cannot be undone.

    A job that cannot be deleted, because it has not ended or does not exist, is named, and the others are deleted.
    With --filter all jobs that match and have ended are deleted, after a question.

    \b
    Examples:
      omni-jobs delete job-0193… job-0194…
      omni-jobs delete --filter created_before=2026-01-05T00:00:00Z --dry-run
    """
    check_target(jobs, filters, dry_run)
    with connect(url) as client:
        if jobs:
            act_on_each(jobs, client.delete)
        else:
            act_on_many(client.delete_all, "delete", filters or (), dry_run=dry_run, is_sure=yes, as_json=as_json)


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


def _standing(job: JobView) -> str:
    """Return a job's state, and why it waits."""
    return job.status.value if job.waiting is None else f"{job.status.value}: {job.waiting.message}"
