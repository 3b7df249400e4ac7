"""The ``omni-jobs`` command. Heavy modules are imported inside the commands that need them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Optional

import typer
from typer.core import TyperGroup

from omni_jobs.errors import InvalidRequest, NotFound, OmniJobsError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from omni_jobs.client import Client
    from omni_jobs.settings import Settings
    from omni_jobs.views import JobView

DEFAULT_PIPELINE = "qwen2_5_omni"


class Exit:
    """The exit codes, as ``omni-jobs --help`` lists them."""

    FAILED = 1
    UNREACHABLE = 3
    NOT_FOUND = 4
    TIMEOUT = 5
    INTERRUPTED = 130


class _Group(TyperGroup):
    """Turns every error omni-jobs raises on purpose into a line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OmniJobsError as error:
            _fail(str(error), _exit_code(error))
        except TimeoutError as error:
            _fail(str(error), Exit.TIMEOUT)
        except KeyboardInterrupt:
            _fail("interrupted", Exit.INTERRUPTED)
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None


def _exit_code(error: OmniJobsError) -> int:
    if isinstance(error, NotFound):
        return Exit.NOT_FOUND
    return Exit.UNREACHABLE if error.http_status == 503 else Exit.FAILED


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"omni-jobs: {message}", err=True)
    raise typer.Exit(code)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Durable generation jobs on multi-stage omni-modal models.",
    epilog="""\b
Try:
  omni-jobs up --pipeline echo            everything on this machine, no model
  omni-jobs submit -p echo Hello --wait   in another terminal
  omni-jobs status --watch

\b
Exit codes:
  0  done
  1  the job, the request, a file or a start failed
  2  wrong usage
  3  the server, the broker or the database does not answer
  4  there is no such job, artifact, pipeline or stage
  5  --timeout passed before the job ended
""",
)
pipelines_app = typer.Typer(
    no_args_is_help=True, help="Look at stage configs.", context_settings={"help_option_names": ["-h", "--help"]}
)
app.add_typer(pipelines_app, name="pipelines")

UrlOption = Annotated[
    Optional[str],  # noqa: UP045 — typer reads it at run time
    typer.Option(
        "--url",
        envvar="OMNI_JOBS_URL",
        help="The API server. Default: the stack that runs in the data directory, else http://127.0.0.1:8000.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
PipelineOption = Annotated[str, typer.Option("--pipeline", "-p", help="The pipeline's name.", show_default=False)]
DataDirOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--data-dir", help="Where everything is kept. Default: ~/.local/share/omni-jobs.", show_default=False),
]


# -- servers -------------------------------------------------------------------------------


@app.command()
def up(
    pipeline: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--pipeline", "-p", help="Start this pipeline's workers; may be repeated.", show_default=False),
    ] = None,
    model: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--model", metavar="[PIPELINE=]PATH", help="A checkpoint directory.", show_default=False),
    ] = None,
    data_dir: DataDirOption = None,
    port: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--port", min=0, max=65535, help="The API's port. Default: 8000, or a free one.", show_default=False
        ),
    ] = None,
) -> None:
    """Run the whole system on this machine until Ctrl-C: broker, API, rescuer and a worker per stage.

    Without --pipeline: those whose checkpoint is given with --model, or else echo.

    \b
    Examples:
      omni-jobs up --pipeline echo
      omni-jobs up --model ~/models/Qwen2.5-Omni-3B
      omni-jobs up --pipeline echo --pipeline qwen2_5_omni --model ~/models/Qwen2.5-Omni-3B --port 9000
    """
    from omni_jobs.console import show_start
    from omni_jobs.settings import read_settings
    from omni_jobs.signals import raised_signals
    from omni_jobs.stack import EmbeddedStack

    settings = read_settings()
    chosen, models = _chosen(settings, pipeline or [], model or [])
    given = {"models": settings.models | models, "data_dir": data_dir or settings.data_dir}
    settings = settings.model_copy(update=given)
    stack = EmbeddedStack(settings, pipelines=chosen, port=port if port is not None else _usual_port(settings))
    with raised_signals():
        try:
            show_start(stack)
            typer.echo(f"omni-jobs is up at {stack.url}  (pipelines: {', '.join(chosen)}; logs: {stack.log_dir})")
            typer.echo("Press Ctrl-C to stop.")
            try:
                stack.wait()
            except KeyboardInterrupt:
                typer.echo("\nstopping …", err=True)
        finally:
            stack.stop()


def _chosen(settings: Settings, pipelines: list[str], models: list[str]) -> tuple[list[str], dict[str, Path]]:
    """The pipelines to start, and their checkpoints as far as given."""
    from omni_jobs.stage_config import load_pipelines

    known = load_pipelines(settings.resolved_stage_configs)
    with_model = [name for name in pipelines or known if known.named(name, field="pipeline").model is not None]
    found: dict[str, Path] = {}
    for value in models:
        name, separator, path = value.partition("=")
        if not separator or name not in known:
            if len(with_model) != 1:
                raise typer.BadParameter(f"say for which pipeline: PIPELINE={value}", param_hint="--model")
            name, path = with_model[0], value
        found[name] = Path(path).expanduser().resolve()
    chosen = pipelines or [name for name in with_model if name in found or name in settings.models]
    return chosen or ["echo"], found


def _usual_port(settings: Settings) -> int:
    """The port people expect, when it is free."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.api_host, settings.api_port))
        except OSError:
            return 0
    return settings.api_port


@app.command()
def api(
    host: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--host", help="Address to listen on.", show_default=False),
    ] = None,
    port: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--port", min=0, max=65535, help="Port to listen on.", show_default=False),
    ] = None,
    fd: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--fd", help="Serve on this listening socket, opened by a supervisor.", show_default=False),
    ] = None,
) -> None:
    """Run one API server. Settings come from OMNI_JOBS_* variables.

    \b
    Example:
      OMNI_JOBS_DATABASE_URL=postgresql://… OMNI_JOBS_BROKER_URL=redis://… omni-jobs api --host 0.0.0.0
    """
    import socket

    import uvicorn

    from omni_jobs.api.app import create_app
    from omni_jobs.settings import settings

    config = uvicorn.Config(
        create_app(settings()),
        host=host or settings().api_host,
        port=settings().api_port if port is None else port,
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    sockets = None if fd is None else [socket.socket(fileno=fd)]
    uvicorn.Server(config).run(sockets=sockets)


@app.command()
def worker(
    pipeline: PipelineOption,
    stage: Annotated[str, typer.Option("--stage", "-s", help="The stage's name.", show_default=False)],
    slot: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--slot",
            help="The worker's name: unique, the same again after a restart. Default: PIPELINE.STAGE-1@host.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            help="Messages at a time; each carries several stage runs.",
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", "-l")] = "INFO",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the Celery command line instead.")] = False,
) -> None:
    """Run one stage's worker: becomes the stock Celery command line.

    \b
    Examples:
      omni-jobs worker --pipeline qwen2_5_omni --stage thinker
      CUDA_VISIBLE_DEVICES=1 omni-jobs worker -p qwen2_5_omni -s talker --slot talker-2@%h
    """
    from omni_jobs.settings import settings
    from omni_jobs.stage_config import load_pipelines
    from omni_jobs.worker_command import (
        POOL_ENVIRONMENT,
        as_shell_line,
        check_worker_installed,
        replace_process,
        worker_command,
    )

    found = load_pipelines(settings().resolved_stage_configs).named(pipeline, field="pipeline")
    command = worker_command(found, stage, settings(), slot=slot, concurrency=concurrency, log_level=log_level)
    if dry_run:
        typer.echo(as_shell_line(command, POOL_ENVIRONMENT))
        return
    check_worker_installed(found, stage)
    configs = {"OMNI_JOBS_STAGE_CONFIGS": str(settings().resolved_stage_configs)}
    replace_process(command, {**configs, **POOL_ENVIRONMENT})


@app.command()
def rescuer() -> None:
    """Run a rescuer: takes back what lost workers held. One is enough; several do no harm."""
    from omni_jobs.rescuer import run
    from omni_jobs.settings import settings

    run(settings())


@app.command()
def migrate() -> None:
    """Bring the database to this version's schema; safe to run twice, and from several hosts."""
    from omni_jobs.db import Database
    from omni_jobs.settings import settings

    database = Database(settings().resolved_database_url)
    try:
        database.migrate()
    finally:
        database.close()
    typer.echo("the database is up to date")


# -- jobs ----------------------------------------------------------------------------------


@app.command()
def submit(
    text: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="What the user says; - reads it from standard input.", show_default=False),
    ] = None,
    pipeline: Annotated[str, typer.Option("--pipeline", "-p", help="The pipeline's name.")] = DEFAULT_PIPELINE,
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
      omni-jobs submit --body request.json --json
    """
    if body is not None:
        if text is not None or audio or image or video:
            raise typer.BadParameter("give a whole request or its parts, not both", param_hint="--body")
        request = _json_object(sys.stdin.read() if body == "-" else Path(body).read_text(encoding="utf-8"), body)
    else:
        from omni_jobs.client import user_message

        text = sys.stdin.read() if text == "-" else text
        if text is None and not (audio or image or video):
            raise typer.BadParameter("a text, a file or --body is needed", param_hint="TEXT")
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append(user_message(text, audio=audio or (), images=image or (), videos=video or ()))
        request = {"model": pipeline, "messages": messages, "modalities": _names(modalities)}
        if voice is not None:
            request["audio"] = {"voice": voice}
        if param:
            request["stages"] = _parameters(param)
        if seed is not None:
            request["seed"] = seed
        if metadata:
            request["metadata"] = dict(_pair(value, "--metadata") for value in metadata)
    from omni_jobs.console import show_progress

    with _client(url) as client:
        job = client.submit(request, idempotency_key=idempotency_key)
        if not wait:
            typer.echo(job.model_dump_json(indent=2) if as_json else job.id)
            return
        job = show_progress(client, job.id, timeout)
        if out is not None:
            client.save(job, out)
        _show_outcome(job, as_json, out)


@app.command()
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
    """Show the newest jobs, or one with its stages.

    \b
    Examples:
      omni-jobs status --watch
      omni-jobs status job-0193… --json
    """
    from omni_jobs.console import job_summary, jobs_table, show_progress

    with _client(url) as client:
        if job_id is not None and watch:
            job = show_progress(client, job_id)
            _print(job.model_dump_json(indent=2) if as_json else job_summary(job))
        elif job_id is not None:
            job = client.get(job_id)
            _print(job.model_dump_json(indent=2) if as_json else job_summary(job))
        elif watch and not as_json:
            _watch(lambda: jobs_table(client.list(limit=limit).jobs))
        else:
            page = client.list(limit=limit)
            _print(page.model_dump_json(indent=2) if as_json else jobs_table(page.jobs))


@app.command()
def cancel(
    job_id: Annotated[str, typer.Argument(metavar="JOB", show_default=False)],
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a job; what it has finished stays."""
    with _client(url) as client:
        job = client.cancel(job_id)
    typer.echo(job.model_dump_json(indent=2) if as_json else job.status.value)


@app.command()
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
    from omni_jobs.console import show_progress

    with _client(url) as client:
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
    if job.status.value == "completed":
        return
    reason = f": {job.error.message}" if job.error is not None else ""
    _fail(f"job {job.id} is {job.status.value}{reason}", Exit.FAILED)


# -- pipelines -----------------------------------------------------------------------------


@pipelines_app.command("check")
def pipelines_check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Stage configs.", show_default=False)],
) -> None:
    """Check stage configs; each error names file, line and field.

    \b
    Example:
      omni-jobs pipelines check stage_configs/*.yaml
    """
    from omni_jobs.errors import ConfigError
    from omni_jobs.stage_config import load_pipeline

    failed = False
    for file in files:
        try:
            pipeline = load_pipeline(file)
        except ConfigError as error:
            typer.echo(str(error), err=True)
            failed = True
        else:
            typer.echo(f"{file}: ok: {pipeline.name} {pipeline.version}, {' → '.join(pipeline.stages)}")
    if failed:
        raise typer.Exit(Exit.FAILED)


@pipelines_app.command("list")
def pipelines_list(as_json: JsonOption = False) -> None:
    """List the pipelines of the stage config directory (OMNI_JOBS_STAGE_CONFIGS)."""
    from rich.table import Table

    from omni_jobs.settings import settings
    from omni_jobs.stage_config import load_pipelines

    known = load_pipelines(settings().resolved_stage_configs)
    if as_json:
        typer.echo(json.dumps([pipeline.model_dump(mode="json") for pipeline in known.values()], indent=2))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("pipeline", "version", "takes", "makes", "stages"):
        table.add_column(title)
    for pipeline in known.values():
        takes, makes, stages = ", ".join(pipeline.accepts), ", ".join(pipeline.outputs), " → ".join(pipeline.stages)
        table.add_row(pipeline.name, pipeline.version, takes, makes, stages)
    _print(table)


# -- shared --------------------------------------------------------------------------------


def _client(url: str | None) -> Client:
    from omni_jobs.client import Client
    from omni_jobs.data_directory import running_stack
    from omni_jobs.settings import read_settings

    if url is None:
        url = (running_stack(read_settings().data_dir) or {}).get("url")
    return Client(url)


def _watch(look: Any) -> None:
    import time

    from rich.live import Live

    with Live(look(), console=_console(), auto_refresh=False) as live:
        while True:
            time.sleep(1.0)
            live.update(look(), refresh=True)


def _print(what: str | RenderableType) -> None:
    if isinstance(what, str):
        typer.echo(what)
    else:
        _console().print(what)


def _console() -> Console:
    from rich.console import Console

    console = Console()
    # A pipe has no width: lines must not be folded at 80 for it.
    return console if console.is_terminal else Console(width=200)


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


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


if __name__ == "__main__":
    app()
