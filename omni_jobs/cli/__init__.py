"""The ``omni-jobs`` command, with a file per group of commands. A command imports heavy modules only when it runs."""

from collections.abc import Callable, Mapping

import typer

from omni_jobs.cli import (
    backup,
    bulk,
    doctor,
    fit,
    healthy,
    jobs,
    keys,
    migrate,
    pipelines,
    servers,
    stages,
    storage,
    submit,
    tenants,
    top,
    usage,
    versions,
    watch,
    workers,
)
from omni_jobs.cli.exits import Exit, Subcommands
from omni_jobs.cli.options import CONTEXT

__all__ = ["Exit", "app"]

app = typer.Typer(
    cls=Subcommands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
    help="Durable generation jobs on multi-stage omni-modal models.",
    epilog="""\b
Try:
  omni-jobs up --pipeline echo            start everything on this machine, without a model
  omni-jobs submit -p echo Hello --wait   in another terminal
  omni-jobs status --watch

\b
Exit codes:
  0  success
  1  a job, a request, a file or a start failed
  2  wrong usage, also where the server says so
  3  the server, the broker or the database does not answer
  4  there is no such job, artifact, pipeline, stage, worker, tenant or key
  5  the job did not end within --timeout
  6  the job was cancelled
  7  the job expired
  8  migrate --check found something to do
""",
)

_COMMANDS: Mapping[str, Callable[..., None]] = {
    "up": servers.up,
    "api": servers.api,
    "worker": servers.worker,
    "rescuer": servers.rescuer,
    "migrate": migrate.migrate,
    "prune": servers.prune,
    "backup": backup.backup,
    "restore": backup.restore,
    "doctor": doctor.doctor,
    "healthy": healthy.healthy,
    "submit": submit.submit,
    "submit-bulk": bulk.submit_bulk,
    "status": jobs.status,
    "watch": watch.watch,
    "top": top.top,
    "list": jobs.list_,
    "result": jobs.result,
    "cancel": jobs.cancel,
    "retry": jobs.retry,
    "fork": submit.fork,
    "advance": jobs.advance,
    "delete": jobs.delete,
    "events": jobs.events,
    "usage": usage.usage,
}
_GROUPS: Mapping[str, tuple[str, Mapping[str, Callable[..., None]]]] = {
    "pipelines": (
        "Check and list stage configs, divide cards among their stages, and go from version to version.",
        {
            "check": pipelines.check,
            "list": pipelines.list_,
            "fit": fit.fit,
            "versions": versions.versions,
            "drain": versions.drain,
            "serve": versions.serve,
        },
    ),
    "stages": (
        "List, pause and resume stages.",
        {"list": stages.list_, "pause": stages.pause, "resume": stages.resume},
    ),
    "workers": (
        "List, drain and resume workers.",
        {"list": workers.list_, "drain": workers.drain, "resume": workers.resume},
    ),
    "storage": ("Prepare the object store.", {"prepare": storage.prepare}),
    "keys": ("Make, list and revoke API keys.", {"create": keys.create, "list": keys.list_, "revoke": keys.revoke}),
    "tenants": (
        "Make, change and delete tenants.",
        {"create": tenants.create, "list": tenants.list_, "set": tenants.set_, "delete": tenants.delete},
    ),
}
for name, command in _COMMANDS.items():
    app.command(name)(command)
for name, (purpose, commands) in _GROUPS.items():
    group = typer.Typer(no_args_is_help=True, help=purpose, context_settings=CONTEXT)
    for command_name, command in commands.items():
        group.command(command_name)(command)
    app.add_typer(group, name=name)
