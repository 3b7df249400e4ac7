"""The command that divides cards among the stages of pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from omni_jobs.cli import options
from omni_jobs.cli.exits import Exit, fail
from omni_jobs.cli.terminal import console, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from omni_jobs.cards import CardNeed, CardPlace
    from omni_jobs.settings import Settings

_NAMED_BY_STAGE: Final = "qwen2_5_omni"  # whose services in docker-compose.yml have the names of its stages alone
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def fit(
    pipelines: options.FittedArgument = None,
    gpus: options.GpusOption = None,
    models: options.CheckpointsOption = None,
    as_env: options.ComposeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show what each stage takes of a card's memory, and divide cards among the stages.

    Weights and keys and values are counted from the checkpoints' files; the work of a step is an estimate. It exits
    with 1 if a stage finds no room. Without a PIPELINE it takes those of OMNI_JOBS_PIPELINES, else all that have a
    checkpoint by --model or OMNI_JOBS_MODELS.

    \b
    Examples:
      omni-jobs pipelines fit qwen2_5_omni --gpu 48 --model /models/Qwen2.5-Omni-7B
      omni-jobs pipelines fit chat qwen_image --gpu 24 --gpu 80
      omni-jobs pipelines fit --gpu 80     # the pipelines that this host serves
      omni-jobs pipelines fit chat --gpu 32 --model /models/chat --env >cards.env
    """
    from omni_jobs.cards import cards_of_host, divided
    from omni_jobs.cli.screen import show_json
    from omni_jobs.settings import read_settings

    if as_env and as_json:
        fail("either --env or --json", Exit.USAGE)
    settings = read_settings()
    if not (pipelines or models or settings.pipelines or settings.models):
        what = "name the pipelines that share the cards, or their checkpoints"
        fail(f"{what}: omni-jobs pipelines fit qwen2_5_omni --gpu 80 --model /models/Qwen2.5-Omni-7B", Exit.USAGE)
    needs = _needs(settings, pipelines or [], models or [])
    cards = [round(size * 10**9) for size in gpus or ()] or [card.total_bytes for card in cards_of_host()]
    if not cards:
        fail("this host has no card, so name those that you mean: --gpu 80", Exit.FAILED)
    places = divided(needs, cards)
    without = [f"{place.need.pipeline}.{place.need.stage}" for place in places if not place.cards]
    if as_env and without:
        fail(f"no card has room for {', '.join(without)}: without --env the command shows what each takes", Exit.FAILED)
    if as_env:
        for name, value in compose_variables(places).items():
            say(f"{name}={value}")
    elif as_json:
        show_json([_as_json(place) for place in places])
    else:
        _show(places, cards)
    if without:
        raise typer.Exit(Exit.FAILED)


def compose_variables(places: Sequence[CardPlace]) -> dict[str, str]:
    """Return the variables of docker-compose.yml, by name, that put each stage on its cards with its share of them."""
    variables = {}
    for place in places:
        stage = place.need.stage
        service = stage if place.need.pipeline == _NAMED_BY_STAGE else f"{place.need.pipeline}-{stage}"
        name = f"{service.upper().replace('-', '_')}_GPU"
        variables[name] = ",".join(map(str, place.cards))
        if place.share is not None:
            variables[f"{name}_MEMORY"] = f"{place.share:.2f}"
    return variables


def _needs(settings: Settings, names: Sequence[str], models: Sequence[str]) -> list[CardNeed]:
    from omni_jobs.cards import need_of
    from omni_jobs.cli.checkpoints import chosen_pipelines
    from omni_jobs.errors import ConfigError
    from omni_jobs.pipelines.loader import load_pipelines
    from omni_jobs.prompts.checkpoint_files import check_checkpoint
    from omni_jobs.prompts.renderers import checkpoint_of

    chosen, given = chosen_pipelines(settings, names, models)
    known = load_pipelines(settings.resolved_stage_configs)
    needs = []
    for name in chosen:
        pipeline = known.named(name, field="pipeline")
        for stage in pipeline.stages.values():
            directory = checkpoint_of(pipeline, stage, {**settings.models, **given})
            if directory is None:
                if stage.runner.torch and stage.model is not None:
                    raise ConfigError(f"name its checkpoint: --model {name}=DIRECTORY", field=name, stage=stage.name)
                continue
            check_checkpoint(directory)
            need = need_of(pipeline, stage, directory)
            if need is not None:
                needs.append(need)
    return needs


def _as_json(place: CardPlace) -> dict[str, object]:
    from dataclasses import asdict

    return {
        **asdict(place.need),
        "bytes": place.need.bytes,
        "on": list(place.cards),
        "share_needed": place.needed,
        "share_to_give": place.share,
    }


def _show(places: Sequence[CardPlace], cards: Sequence[int]) -> None:
    from omni_jobs.cli.tables import table_of

    if not places:
        say("None of their stages runs on a card.")
        return
    rows = []
    for place in places:
        need = place.need
        rows.append(
            (
                f"{need.pipeline}.{need.stage}",
                _gb(need.weights_bytes),
                f"{_gb(need.context_bytes)} of {need.context_tokens:,}" if need.context_tokens else "",
                _gb(need.work_bytes),
                _gb(need.bytes),
                " ".join(map(str, place.cards)) or _lack(need),
                "" if place.needed is None else f"{place.needed:.2f}",
                _judged(place),
                "" if place.share is None else f"{place.share:.2f}",
            )
        )
    titles = ("stage", "weights", "context", "work", "takes GB", "card", "share", "its config", "to give")
    console().print(table_of(*titles, rows=rows))
    for number, size in enumerate(cards):
        console().print(_bar(number, size, [place for place in places if number in place.cards]))
    given = [place for place in places if place.share is not None]
    if given:
        say("Environments of the workers, with what is left of each card for more keys and values:")
        for place in given:
            devices = ",".join(map(str, place.cards))
            variables = f"NVIDIA_VISIBLE_DEVICES={devices} OMNI_JOBS_GPU_MEMORY_UTILIZATION={place.share:.2f}"
            say(f"  {place.need.pipeline}.{place.need.stage}  {variables}")


def _lack(need: CardNeed) -> str:
    return "no room" if need.cards == 1 else f"no room on {need.cards} cards of one size"


def _judged(place: CardPlace) -> str:
    """Return the share that the stage config gives, and whether it would do."""
    share = place.need.share
    if share is None:
        return ""
    return f"{share:g}, too small" if place.is_given_too_little else f"{share:g}"


def _bar(number: int, size: int, places: Sequence[CardPlace], width: int = 60) -> Text:
    """Return a card as a line: what each stage takes of it, and what is left."""
    from rich.text import Text

    bar = Text(f"card {number}  ")
    used = 0
    for position, place in enumerate(places):
        colour = _COLOURS[position % len(_COLOURS)]
        cells = max(1, round(width * place.need.bytes / size))
        name = place.need.stage[: cells - 2]
        before = (cells - len(name)) // 2
        bar.append("█" * before, style=colour)
        bar.append(name, style=f"black on {colour}")
        bar.append("█" * (cells - before - len(name)), style=colour)
        used += cells
    taken = sum(place.need.bytes for place in places)
    bar.append("░" * max(0, width - used))
    bar.append(f"  {_gb(taken)} of {_gb(size)} GB")
    return bar


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f}"
