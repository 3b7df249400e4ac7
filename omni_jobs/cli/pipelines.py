"""The commands that check and list stage configs."""

from pathlib import Path

import typer

from omni_jobs.cli.exits import Exit
from omni_jobs.cli.options import JsonOption, StageConfigsArgument
from omni_jobs.cli.screen import show
from omni_jobs.cli.terminal import say


def check(files: StageConfigsArgument) -> None:
    """Check stage configs, and that no two are the same version of a pipeline.

    Each mistake is a line: file, line and field if known.
    vLLM's engine arguments are checked by vLLM's own types where it is installed; elsewhere a line says that they are
    not.

    \b
    Example:
      omni-jobs pipelines check stage_configs/*.yaml
    """
    from omni_jobs.errors import ConfigError, PluginBroken
    from omni_jobs.pipelines.loader import load_pipeline, same_version
    from omni_jobs.pipelines.yaml_source import collected, gathered
    from omni_jobs.prompts.renderers import check_renderers
    from omni_jobs.stack.engine_check import check_engines

    failed = False
    versions: dict[str, Path] = {}
    not_looked_at: list[str] = []
    wrong = check_engines(files, not_looked_at.append)
    for file in files:
        found: list[ConfigError] = []
        with collected(found):
            pipeline = load_pipeline(file)
            try:
                check_renderers(pipeline)
            except PluginBroken as error:
                raise PluginBroken(error.message, file=str(file), field="model.family") from error
            if versions.setdefault(pipeline.reference, file) != file:
                message = same_version(pipeline, versions[pipeline.reference])
                raise ConfigError(message, file=str(file), field="version")
        found += wrong.get(file, [])
        if found:
            first = gathered(found)
            for mistake in sorted((first, *first.more), key=lambda mistake: mistake.line or 0):
                say(str(mistake), err=True)
            failed = True
        else:
            stages = " → ".join(pipeline.stages)
            say(f"{file}: ok: {pipeline.name} {pipeline.version}, {stages}, digest {pipeline.digest}")
    for line in not_looked_at:
        say(line, err=True)
    if failed:
        raise typer.Exit(Exit.FAILED)


def list_(as_json: JsonOption = False) -> None:
    """List the pipelines in the directory of stage configs (OMNI_JOBS_STAGE_CONFIGS), and which an API server serves.

    OMNI_JOBS_PIPELINES leaves out the others.

    \b
    Examples:
      omni-jobs pipelines list
      OMNI_JOBS_STAGE_CONFIGS=/etc/omni-jobs/stage_configs omni-jobs pipelines list --json
    """
    from omni_jobs.cli.exits import notice
    from omni_jobs.cli.tables import table_of
    from omni_jobs.pipelines.loader import load_pipelines
    from omni_jobs.settings import read_settings

    settings = read_settings(notice)
    known = load_pipelines(settings.resolved_stage_configs)
    served = {each.reference for each in known.served(settings.pipelines).values()}
    rows = (
        (
            each.name,
            each.version,
            "yes" if each.reference in served else "no",
            ", ".join(each.accepts),
            ", ".join(each.outputs),
            " → ".join(each.stages),
        )
        for each in known.values()
    )
    titles = ("pipeline", "version", "served", "takes", "makes", "stages")
    listed = [{**each.model_dump(mode="json"), "served": each.reference in served} for each in known.values()]
    show(listed, as_json, lambda _: table_of(*titles, rows=rows))
