"""Commands of jobs: submit them, look at them, stop them, try them again, fetch what they made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from omni_jobs.cli.exits import Exit, fail
from omni_jobs.cli.options import JsonOption, UrlOption
from omni_jobs.cli.screen import show, watching
from omni_jobs.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omni_jobs.client import Client
    from omni_jobs.views import JobView

__all__ = ["cancel", "client_of", "delete", "events", "list_", "result", "retry", "status", "submit"]


def submit(
    text: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="What the user says; - reads it from standard input.", show_default=False),
    ] = None,
    pipeline: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--pipeline", "-p", help="The pipeline's name. Default: the one that is served.", show_default=False
        ),
    ] = None,
    audio: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option("--audio", exists=True, dir_okay=False, help="A sound file; may be repeated.", show_default=False),
    ] = None,
    image: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option("--image", exists=True, dir_okay=False, help="A picture; may be repeated.", show_default=False),
    ] = None,
    video: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option("--video", exists=True, dir_okay=False, help="A video; may be repeated.", show_default=False),
    ] = None,
    prompt_embeds: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--prompt-embeds",
            exists=True,
            dir_okay=False,
            help="Embeddings in place of a text: a safetensors file with one tensor, prompt_embeds.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--system", help="The system message.", show_default=False),
    ] = None,
    modalities: Annotated[str, typer.Option("--modalities", "-m", help="What to make: text, or text,audio.")] = "text",
    voice: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--voice", help="The voice of the audio.", show_default=False),
    ] = None,
    param: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--param", metavar="STAGE.NAME=VALUE", help="A stage's parameter; may be repeated.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--seed", min=0, help="Makes the job repeatable.", show_default=False),
    ] = None,
    metadata: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--metadata", metavar="NAME=VALUE", help="Kept with the job; may be repeated.", show_default=False
        ),
    ] = None,
    body: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--body", metavar="FILE", help="A whole request as JSON (- reads standard input).", show_default=False
        ),
    ] = None,
    idempotency_key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--idempotency-key", help="Submitting again with it makes no second job.", show_default=False),
    ] = None,
    cancel_after: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--cancel-after", metavar="TIME", help="Stop it by itself after 90s, 15m, 2h.", show_default=False
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Show the job's progress until it ends.")] = False,
    timeout: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--timeout", min=0, help="Seconds to --wait.", show_default=False),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--out", help="With --wait: write result.json, text.txt and the artifacts here.", show_default=False
        ),
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Submit a job and print its id; with --wait, its outcome.

    \b
    Examples:
      omni-jobs submit "Tell me about the sea" --modalities text,audio --voice Chelsie --wait --out sea
      omni-jobs submit "What is said here?" --audio question.wav --param thinker.max_tokens=64
      omni-jobs submit --pipeline chat --prompt-embeds prompt.safetensors --wait
      omni-jobs submit --body request.json --json
    """
    media = {"audio": audio or (), "images": image or (), "videos": video or ()}
    if body is not None:
        if text is not None or any(media.values()):
            raise typer.BadParameter("give a whole request or its parts, not both", param_hint="--body")
        request = _json_object(sys.stdin.read() if body == "-" else Path(body).read_text(encoding="utf-8"), body)
    else:
        request = {"modalities": _names(modalities)}
        if prompt_embeds is None:
            request["messages"] = _messages(sys.stdin.read() if text == "-" else text, system, media)
        elif text is not None or system is not None or any(media.values()):
            raise typer.BadParameter("they take the place of a text and of files", param_hint="--prompt-embeds")
        if voice is not None:
            request["audio"] = {"voice": voice}
        if param:
            request["stages"] = _parameters(param)
        if seed is not None:
            request["seed"] = seed
        if metadata:
            request["metadata"] = dict(_pair(value, "--metadata") for value in metadata)
    from omni_jobs.cli.console import show_progress

    with client_of(url) as client:
        if body is None:
            request["model"] = pipeline or _the_one_served(client)
        job = client.submit(
            request, prompt_embeds=prompt_embeds, idempotency_key=idempotency_key, cancel_after=cancel_after
        )
        if not wait:
            typer.echo(job.model_dump_json(indent=2) if as_json else job.id)
            return
        job = show_progress(client, job.id, timeout)
        if out is not None:
            client.save(job, out)
        _show_outcome(job, as_json, out)


def status(
    job_id: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[JOB]", help="One job; without it, the newest.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="How many jobs.")] = 20,
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking, until the job ends or Ctrl-C.")] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the newest jobs, or one with its stages and every attempt that failed.

    \b
    Examples:
      omni-jobs status --watch
      omni-jobs status job-0193… --json
    """
    from omni_jobs.cli.console import job_summary, jobs_table, show_progress

    with client_of(url) as client:
        if job_id is not None:
            job = show_progress(client, job_id) if watch else client.get(job_id)
            show(job.model_dump_json(indent=2) if as_json else job_summary(job))
            _warn(job)
        elif watch and not as_json:
            watching(lambda: jobs_table(client.list(limit=limit, brief=True).jobs))
        else:
            page = client.list(limit=limit, brief=not as_json)
            show(page.model_dump_json(indent=2) if as_json else jobs_table(page.jobs))


def list_(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="How many jobs.")] = 20,
    cursor: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--cursor", metavar="JOB", help="The jobs before this one.", show_default=False),
    ] = None,
    state: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--status", help="Only those queued, in_progress, failed, …", show_default=False),
    ] = None,
    pipeline: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--pipeline", "-p", help="Only those of this pipeline.", show_default=False),
    ] = None,
    error_code: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--error-code", metavar="CODE", help="Only those with this error.", show_default=False),
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, the newest first.

    With --json they come with their results, and a page ends early where those are large: go on
    with --cursor while there is a next_cursor.

    \b
    Examples:
      omni-jobs list --status failed
      omni-jobs list --error-code quarantined --json
    """
    from omni_jobs.cli.console import jobs_table

    with client_of(url) as client:
        page = client.list(
            limit=limit, cursor=cursor, status=state, pipeline=pipeline, error_code=error_code, brief=not as_json
        )
    show(page.model_dump_json(indent=2) if as_json else jobs_table(page.jobs))


def events(
    job_id: Annotated[str, typer.Argument(metavar="JOB", show_default=False)],
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what became of a job, the oldest first.

    \b
    Example:
      omni-jobs events job-0193…
    """
    from omni_jobs.cli.console import events_table

    with client_of(url) as client:
        found = client.events(job_id)
    if as_json:
        typer.echo(json.dumps([event.model_dump(mode="json") for event in found], indent=2))
    else:
        show(events_table(found))


def cancel(
    job_id: Annotated[str, typer.Argument(metavar="JOB", show_default=False)],
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a job; what it has finished stays.

    \b
    Example:
      omni-jobs cancel job-0193…
    """
    with client_of(url) as client:
        job = client.cancel(job_id)
    typer.echo(job.model_dump_json(indent=2) if as_json else job.status.value)


def retry(
    job_id: Annotated[str, typer.Argument(metavar="JOB", show_default=False)],
    from_stage: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--from-stage", metavar="STAGE", help="Run this one again, and what follows.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Show the job's progress until it ends.")] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a job that has ended on again: what did not succeed, or all from a stage on.

    \b
    Examples:
      omni-jobs retry job-0193…
      omni-jobs retry job-0193… --from-stage talker --wait
    """
    from omni_jobs.cli.console import show_progress

    with client_of(url) as client:
        job = client.retry(job_id, from_stage=from_stage)
        if wait:
            _show_outcome(show_progress(client, job_id), as_json, None)
            return
    typer.echo(job.model_dump_json(indent=2) if as_json else job.status.value)


def delete(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", show_default=False)],
    url: UrlOption = None,
) -> None:
    """Delete jobs that have ended, with all they made. There is no way back.

    \b
    Example:
      omni-jobs delete job-0193… job-0194…
    """
    with client_of(url) as client:
        for job_id in jobs:
            client.delete(job_id)


def result(
    job_id: Annotated[str, typer.Argument(metavar="JOB", show_default=False)],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Write result.json, text.txt and the artifacts here.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the job to end.")] = False,
    timeout: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--timeout", min=0, help="Seconds to --wait.", show_default=False),
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a finished job's text and name its artifacts; with --out, fetch them.

    \b
    Example:
      omni-jobs result job-0193… --out sea     # sea/result.json, sea/text.txt, sea/audio.wav
    """
    from omni_jobs.cli.console import show_progress

    with client_of(url) as client:
        job = show_progress(client, job_id, timeout) if wait else client.get(job_id)
        if out is not None:
            client.save(job, out)
    _show_outcome(job, as_json, out)


def _show_outcome(job: JobView, as_json: bool, out: Path | None) -> None:
    """The text on stdout, all else on stderr; exit 1 unless the job is completed."""
    if as_json:
        typer.echo(job.model_dump_json(indent=2))
    else:
        text = (job.result or {}).get("text")
        if text is not None:
            typer.echo(text)
        for artifact in job.artifacts:
            where = out / artifact.name if out is not None else artifact.url
            typer.echo(f"{where}  ({artifact.media_type}, {artifact.bytes} bytes)", err=True)
    _warn(job)
    if job.status.value == "completed":
        return
    reason = f": {job.error.message}" if job.error is not None else ""
    fail(f"job {job.id} is {job.status.value}{reason}", Exit.FAILED)


def _warn(job: JobView) -> None:
    from omni_jobs.cli.console import printable

    for warning in job.warnings:
        typer.echo(f"warning: {printable(warning.message)}", err=True)


def client_of(url: str | None) -> Client:
    """The server named, or the stack that runs here."""
    from omni_jobs.client import Client
    from omni_jobs.settings import read_settings
    from omni_jobs.stack.data_directory import running_stack

    if url is None:
        url = (running_stack(read_settings().data_dir) or {}).get("url")
    return Client(url)


def _the_one_served(client: Client) -> str:
    """The name of the server's only pipeline; wrong usage where it has several."""
    names = [pipeline.name for pipeline in client.pipelines()]
    if len(names) != 1:
        there = f"this server serves {', '.join(names)}" if names else "this server serves none"
        raise typer.BadParameter(f"say which one: {there}", param_hint="--pipeline")
    return names[0]


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


def _messages(text: str | None, system: str | None, media: Mapping[str, Sequence[Path]]) -> list[dict[str, Any]]:
    from omni_jobs.client import user_message

    if text is None and not any(media.values()):
        raise typer.BadParameter("a text, a file or --body is needed", param_hint="TEXT")
    messages = [{"role": "system", "content": system}] if system is not None else []
    return [*messages, user_message(text, **media)]


def _pair(value: str, option: str) -> tuple[str, str]:
    name, separator, content = value.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"{value!r} is not NAME=VALUE", param_hint=option)
    return name, content


def _parameters(values: list[str]) -> dict[str, dict[str, Any]]:
    """``thinker.temperature=0`` → {"thinker": {"temperature": 0}}; what is not JSON is a string."""
    found: dict[str, dict[str, Any]] = {}
    for value in values:
        path, content = _pair(value, "--param")
        stage, separator, name = path.partition(".")
        if not separator or not stage or not name:
            raise typer.BadParameter(f"{value!r} is not STAGE.NAME=VALUE", param_hint="--param")
        try:
            found.setdefault(stage, {})[name] = json.loads(content)
        except ValueError:
            found[stage][name] = content
    return found


def _json_object(text: str, file: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{file} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"{file} is not a JSON object")
    return found
