"""The ``omni-jobs`` command, with a file per group of commands. A command imports heavy modules only when it runs."""

from collections.abc import Callable, Mapping

import typer

from omni_jobs.cli import bulk, jobs, keys, pipelines, servers, stages, submit, tenants
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
  2  wrong usage
  3  the server, the broker or the database does not answer
  4  there is no such job, artifact, pipeline, stage, tenant or key
  5  the job did not end within --timeout
""",
)

_COMMANDS: Mapping[str, Callable[..., None]] = {
    "up": servers.up,
    "api": servers.api,
    "worker": servers.worker,
    "rescuer": servers.rescuer,
    "migrate": servers.migrate,
    "prune": servers.prune,
    "submit": submit.submit,
    "submit-bulk": bulk.submit_bulk,
    "status": jobs.status,
    "list": jobs.list_,
    "result": jobs.result,
    "cancel": jobs.cancel,
    "retry": jobs.retry,
    "delete": jobs.delete,
    "events": jobs.events,
}
for name, command in _COMMANDS.items():
    app.command(name)(command)

pipelines_app = typer.Typer(no_args_is_help=True, help="Check and list stage configs.", context_settings=CONTEXT)
pipelines_app.command("check")(pipelines.check)
pipelines_app.command("list")(pipelines.list_)
app.add_typer(pipelines_app, name="pipelines")

stages_app = typer.Typer(no_args_is_help=True, help="List, pause and resume stages.", context_settings=CONTEXT)
stages_app.command("list")(stages.list_)
stages_app.command("pause")(stages.pause)
stages_app.command("resume")(stages.resume)
app.add_typer(stages_app, name="stages")

keys_app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys.", context_settings=CONTEXT)
keys_app.command("create")(keys.create)
keys_app.command("list")(keys.list_)
keys_app.command("revoke")(keys.revoke)
app.add_typer(keys_app, name="keys")

tenants_app = typer.Typer(no_args_is_help=True, help="Make, change and delete tenants.", context_settings=CONTEXT)
tenants_app.command("create")(tenants.create)
tenants_app.command("list")(tenants.list_)
tenants_app.command("set")(tenants.set_)
tenants_app.command("delete")(tenants.delete)
app.add_typer(tenants_app, name="tenants")
