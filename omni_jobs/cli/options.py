"""The arguments and options of all commands: an annotated type for each, which commands give their parameters."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from omni_jobs.priority import Priority

CONTEXT = {"help_option_names": ["-h", "--help"]}


def _media_option(name: str, help_: str) -> typer.models.OptionInfo:
    return typer.Option(  # type: ignore[no-any-return]
        name, exists=True, help=f"{help_} Of a directory all files. May be repeated."
    )


# Of several commands.

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="OMNI_JOBS_URL",
        help="The API server. Default: the stack that runs in the data directory, else http://127.0.0.1:8000.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Directory for all data. Default: ~/.local/share/omni-jobs.")
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="Show the job's progress until it ends.")]
TimeoutOption = Annotated[float | None, typer.Option("--timeout", min=0, help="Give up --wait after these seconds.")]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Write result.json, text.txt and the artifacts of the ended job into this directory."),
]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="Number of jobs.")]
CancelAfterOption = Annotated[
    str | None, typer.Option("--cancel-after", metavar="TIME", help="Cancel each job after this time: 90s, 15m, 2h.")
]
PipelineOption = Annotated[
    str, typer.Option("--pipeline", "-p", help="The pipeline's name, for its newest version, or NAME@VERSION.")
]

# Of submit.

TextArgument = Annotated[str | None, typer.Argument(help="The user's message; - reads it from standard input.")]
SubmitPipelineOption = Annotated[
    str | None, typer.Option("--pipeline", "-p", help="The pipeline's name. Default: the only one that is served.")
]
AudioOption = Annotated[list[Path] | None, _media_option("--audio", "A sound file in the message.")]
ImageOption = Annotated[list[Path] | None, _media_option("--image", "A picture in the message.")]
VideoOption = Annotated[list[Path] | None, _media_option("--video", "A video in the message.")]
PromptEmbedsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompt-embeds",
        exists=True,
        dir_okay=False,
        help="Embeddings in place of a message: a safetensors file with one tensor, prompt_embeds.",
    ),
]
SystemOption = Annotated[str | None, typer.Option("--system", help="The system message.")]
ModalitiesOption = Annotated[
    str | None,
    typer.Option(
        "--modalities", "-m", help="The outputs: text, or text,audio. Default: text, else the pipeline's first output."
    ),
]
SizeOption = Annotated[
    str | None,
    typer.Option(
        "--size", metavar="WIDTHxHEIGHT", help="Of a picture or a video: the width and height of the stages that have."
    ),
]
KeepPayloadsOption = Annotated[
    bool,
    typer.Option("--keep-payloads", help="Keep what the stages hand on for a time, so that the job can be forked."),
]
PreviewsOption = Annotated[
    bool,
    typer.Option(
        "--previews", help="Ask for previews: the dashboard shows them, and with --out preview.jpeg has the newest."
    ),
]
WaitingOutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Wait, and write result.json, text.txt and the artifacts into this directory."),
]
VoiceOption = Annotated[str | None, typer.Option("--voice", help="The voice of the audio.")]
ParamOption = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="STAGE.NAME=VALUE", help="Set a parameter of a stage. May be repeated."),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, help="Random seed; the same seed gives the same result.")
]
MetadataOption = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="NAME=VALUE", help="Keep this with the job. May be repeated.")
]
PriorityOption = Annotated[
    Priority | None, typer.Option("--priority", help="Before or after your other jobs: high, normal or low.")
]
BodyOption = Annotated[
    str | None,
    typer.Option("--body", metavar="FILE", help="A whole request as JSON; - reads it from standard input."),
]
IdempotencyKeyOption = Annotated[
    str | None, typer.Option("--idempotency-key", help="A second submit with the same key makes no second job.")
]

# Of submit-bulk.

LinesArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="One request per line, as JSON: a file, a pipe, or - for standard input. Or a directory, a job per file.",
    ),
]
DirectoryPipelineOption = Annotated[
    str | None,
    typer.Option("--pipeline", "-p", help="Of a directory: the pipeline of its sounds, pictures and videos."),
]
DirectoryTextOption = Annotated[
    str | None, typer.Option("--text", help="Of a directory: the text after each sound, picture or video.")
]
AnswersOption = Annotated[
    typer.FileTextWrite,
    typer.Option("--out", lazy=False, encoding="utf-8", help="Write one answer per line to this file."),
]

# Of top.


class TopPart(StrEnum):
    """What ``omni-jobs top`` shows of a server, in this order."""

    OVERVIEW = "overview"
    WORKERS = "workers"
    JOBS = "jobs"


TopPartArgument = Annotated[TopPart | None, typer.Argument(help="Show this part alone.")]
OnceOption = Annotated[bool, typer.Option("--once", help="Print one screen, and end.")]
EveryOption = Annotated[float, typer.Option("--every", min=0.2, help="Seconds from one screen to the next.")]

# Of status, watch, list, retry and delete.

NewestOrJobArgument = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="The job's id; without it, the newest jobs are shown.")
]
ExaminationsOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="NAME", help="Only this examination; may be given several times.")
]
WaitForOption = Annotated[
    float, typer.Option("--wait-for", min=0, help="Ask a service that does not answer again for so many seconds.")
]
WatchTimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0, help="Give up after these seconds; the jobs go on.")
]
WatchOption = Annotated[bool, typer.Option("--watch", help="Refresh until the job ends, or until Ctrl-C.")]
CursorOption = Annotated[str | None, typer.Option("--cursor", metavar="JOB", help="Only jobs older than this one.")]
StatusOption = Annotated[str | None, typer.Option("--status", help="Only jobs that are queued, failed, …")]
ListPipelineOption = Annotated[str | None, typer.Option("--pipeline", "-p", help="Only jobs of this pipeline.")]
ErrorCodeOption = Annotated[
    str | None, typer.Option("--error-code", metavar="CODE", help="Only jobs that failed with this error.")
]
ListStageOption = Annotated[
    str | None, typer.Option("--stage", "-s", help="Only jobs whose stage of this name waits, runs or has failed.")
]
ListMetadataOption = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="NAME=VALUE", help="Only jobs that keep this. May be repeated."),
]
CreatedAfterOption = Annotated[
    str | None, typer.Option("--created-after", metavar="TIME", help="Only jobs since then, like 2026-01-05T09:30:00Z.")
]
CreatedBeforeOption = Annotated[
    str | None, typer.Option("--created-before", metavar="TIME", help="Only jobs from before then.")
]
ListTenantOption = Annotated[
    str | None, typer.Option("--tenant", "-t", metavar="NAME", help="Only jobs of this tenant.")
]
FirstDayOption = Annotated[
    str | None, typer.Option("--from", metavar="DAY", help="The first day, like 2026-01-05 (UTC). Default: 29 before.")
]
LastDayOption = Annotated[str | None, typer.Option("--to", metavar="DAY", help="The last day. Default: today.")]
ByOption = Annotated[
    str, typer.Option("--by", metavar="NAMES", help="By what to add up: day, tenant, pipeline, stage, with commas.")
]
UsedPipelineOption = Annotated[str | None, typer.Option("--pipeline", "-p", help="Only this pipeline's stages.")]
UsedTenantOption = Annotated[
    str | None, typer.Option("--tenant", "-t", metavar="NAME", help="Only jobs of this tenant.")
]
JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB…", help="The jobs' ids.")]
OneOrFilteredArgument = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="The job's id; or give --filter, for many jobs.")
]
SomeOrFilteredArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB…]", help="The jobs' ids; or give --filter.")
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="NAME=VALUE",
        help="All jobs that match: status, pipeline, stage, error_code, metadata=NAME=VALUE, created_after, "
        "created_before or tenant. May be repeated; a job must match each.",
    ),
]
CountOption = Annotated[bool, typer.Option("--dry-run", help="Only count the jobs that match --filter.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before many jobs are changed.")]
FromStageOption = Annotated[
    str | None, typer.Option("--from-stage", metavar="STAGE", help="Run this stage and all later ones again.")
]
OnVersionOption = Annotated[
    str | None,
    typer.Option("--version", metavar="VERSION", help="Run them on this version of the pipeline."),
]

ForkStageOption = Annotated[
    str, typer.Option("--from", metavar="STAGE", help="Run this stage and all later ones; take over the others.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="STAGE.NAME=VALUE", help="Another parameter of a stage. May be repeated."),
]

# Of the servers.

ServePipelinesOption = Annotated[
    list[str] | None, typer.Option("--pipeline", "-p", help="Serve this pipeline. May be repeated.")
]
CheckpointsOption = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="[PIPELINE[.STAGE]=]PATH", help="A checkpoint directory. May be repeated."),
]
TinyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tiny", metavar="PIPELINE", help="Build a tiny checkpoint of random weights and serve it. May be repeated."
    ),
]
UpPortOption = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="The API's port. Default: 8000, or a free one if 8000 is taken."),
]
HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
ApiPortOption = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on.")]
FdOption = Annotated[
    int | None, typer.Option("--fd", help="Serve on this listening socket, which a supervisor has opened.")
]
PlugsFdOption = Annotated[
    int | None, typer.Option("--plugs-fd", help="Ask the supervisor of an embedded stack through this socket.")
]
BeatFileOption = Annotated[
    Path, typer.Option("--file", envvar="OMNI_JOBS_BEAT_FILE", help="The file that the process touches.")
]
BeatsWithinOption = Annotated[
    float, typer.Option("--within", min=1, help="How many seconds old the last beat may be.", show_default=True)
]
# Of migrate.

CheckOption = Annotated[
    bool,
    typer.Option("--check", help="Only show what would be done: exit code 8, if there is anything."),
]
DownOption = Annotated[bool, typer.Option("--down", help="Go back to the schema of the release before.")]
ToOption = Annotated[
    str | None, typer.Option("--to", metavar="REVISION", help="With --down: go back to this revision of the schema.")
]
LoseOption = Annotated[
    list[str] | None,
    typer.Option(
        "--lose", metavar="TABLE[.COLUMN]", help="With --down: delete this, although it holds data. May be repeated."
    ),
]
RunsAsOption = Annotated[
    Path | None,
    typer.Option(
        "--runs-as",
        metavar="FILE",
        help="A file with the URL by which the processes connect to PostgreSQL: let its role work with rows, and do "
        "nothing else. One that is not there is made.",
    ),
]
MigrateJsonOption = Annotated[bool, typer.Option("--json", help="With --check: print JSON, for scripts.")]

# Of backup and restore.

NewBackupArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The backup's directory: new, or empty.")]
BackupArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The backup's directory.")]
ObjectsOption = Annotated[bool, typer.Option("--objects", help="Copy the objects too, and not only the list of them.")]

# Of a worker.

StageOption = Annotated[str, typer.Option("--stage", "-s", help="The stage's name.")]
SlotOption = Annotated[
    str | None,
    typer.Option(
        "--slot", help="The worker's name: unique, and the same after a restart. Default: PIPELINE.STAGE-1@host."
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option("--concurrency", "-c", min=1, help="Stage runs at a time; by default the slots of the stage config."),
]
LogLevelOption = Annotated[str, typer.Option("--log-level", "-l", help="Lowest level that is logged.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print the Celery command line.")]

# Of versions.

VersionArgument = Annotated[str, typer.Argument(metavar="NAME@VERSION", help="The version of a pipeline.")]
NoneLeftOption = Annotated[bool, typer.Option("--wait", "-w", help="Return once none of its jobs is left.")]
NoneLeftTimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0, help="Give up --wait after these seconds; it goes on draining.")
]

# Of stages.

PipelineArgument = Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")]
StageArgument = Annotated[str, typer.Argument(metavar="STAGE", help="The stage's name.")]
WorkerArgument = Annotated[
    str | None,
    typer.Argument(metavar="[WORKER]", help="The worker's slot, which is its Celery node name, or its id."),
]
HostOfWorkersOption = Annotated[
    str | None,
    typer.Option("--host", metavar="HOST", help="All workers of this host."),
]
EmptyOption = Annotated[bool, typer.Option("--wait", "-w", help="Return once they run nothing any more.")]
EmptyTimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0, help="Give up --wait after these seconds; they stay drained.")
]

# Of keys and tenants.

TenantOption = Annotated[str, typer.Option("--tenant", "-t", metavar="NAME", help="The tenant of the key.")]
OfTenantOption = Annotated[
    str | None, typer.Option("--tenant", "-t", metavar="NAME", help="Only the keys of this tenant.")
]
ScopesOption = Annotated[
    list[str], typer.Option("--scope", "-s", help="submit, read, files, webhooks or admin. May be repeated.")
]
KeyNameOption = Annotated[str | None, typer.Option("--name", help="What the list of keys calls it.")]
ExpiresOption = Annotated[
    float | None, typer.Option("--expires-in-days", metavar="DAYS", help="Refuse the key after this time.")
]
KeysArgument = Annotated[list[str], typer.Argument(metavar="KEY…", help="The keys' ids, as keys list shows them.")]
TenantArgument = Annotated[str, typer.Argument(metavar="NAME", help="The tenant's name.")]
WeightOption = Annotated[
    float | None, typer.Option("--weight", "-w", help="Its share beside other tenants' weights. Default: 1.")
]
LimitsOption = Annotated[
    list[str] | None,
    typer.Option("--limit", "-l", metavar="NAME=NUMBER", help="Set a limit; none removes it. May be repeated."),
]

# Of pipelines check.

StageConfigsArgument = Annotated[list[Path], typer.Argument(metavar="FILE…", help="Stage configs.")]

# Of pipelines fit.

FittedArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PIPELINE]…",
        help="Pipelines that share the cards. Default: those of OMNI_JOBS_PIPELINES, or all with a checkpoint.",
    ),
]
GpusOption = Annotated[
    list[float] | None,
    typer.Option(
        "--gpu", metavar="GB", min=1, help="A card, by its 10⁹ bytes. May be repeated. Default: those of this host."
    ),
]
ComposeOption = Annotated[
    bool,
    typer.Option(
        "--env", help="Print the variables of docker-compose.yml alone: the card of each stage, and its share of it."
    ),
]
