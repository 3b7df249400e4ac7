"""The files of deploy/cards, made from what ``omni-jobs pipelines fit`` reckons. ``scripts/card-files`` writes them."""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from omni_jobs.cards import CardNeed, CardPlace, divided, need_of
from omni_jobs.cli.fit import compose_variables
from omni_jobs.pipelines.loader import load_pipelines
from tests.packaging.checkpoint_sizes import CHECKPOINTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "cards"
PIPELINES = load_pipelines(ROOT / "stage_configs")
MOST: Final = 0.95  # of a card, as `pipelines fit` gives at most
GB: Final = 10**9
COUNTS: Final = {1: "one", 2: "two", 4: "four"}
SIZES_GB: Final = (24, 48, 80)

_HEAD = """\
# {Number} of {size} GB: the card of each stage and its share of that card, for docker-compose.yml. Give it after .env:
#
#   docker compose --env-file .env --env-file deploy/cards/{name} up --detach --wait
#
# Each pipeline here has the {cards} to itself, with the checkpoint that is named or a smaller one, in bfloat16.
# docs/operations/gpus.md says what to do for others and for several at once. Made by scripts/card-files from what
# `omni-jobs pipelines fit` reckons, and not tried on a GPU.
"""


class Cards(NamedTuple):
    """Cards of one size."""

    number: int
    size_gb: int

    @property
    def name(self) -> str:
        """That of their file."""
        return f"{COUNTS[self.number]}-{self.size_gb}gb.env"

    @property
    def bytes(self) -> int:
        """Of each card."""
        return self.size_gb * GB


ALL = tuple(Cards(number, size) for number in COUNTS for size in SIZES_GB)


def made() -> dict[str, str]:
    """Return the text of each file, by its name."""
    return {cards.name: text_of(cards) for cards in ALL}


def text_of(cards: Cards) -> str:
    """Return the text of the file for these cards."""
    number = "One card" if cards.number == 1 else f"{COUNTS[cards.number].capitalize()} cards"
    kind = "card" if cards.number == 1 else "cards"
    blocks = [_HEAD.format(Number=number, size=cards.size_gb, name=cards.name, cards=kind)]
    without = []
    for pipeline in CHECKPOINTS:
        if (found := fitting(pipeline, cards)) is None:
            without.append(pipeline)
            continue
        checkpoint, places = found
        lines = [f"{name}={value}" for name, value in compose_variables(places).items()]
        blocks.append("\n".join([f"# {pipeline}, with {checkpoint}{_left(places, cards)}", *lines, ""]))
    if without:
        blocks.append(f"# No room for: {', '.join(without)}\n")
    return "\n".join(blocks)


def _left(places: Sequence[CardPlace], cards: Cards) -> str:
    used = {card for place in places for card in place.cards}
    free = [str(card) for card in range(cards.number) if card not in used]
    return f"; free cards: {', '.join(free)}" if free else ""


def fitting(pipeline: str, cards: Cards) -> tuple[str, list[CardPlace]] | None:
    """Return the largest checkpoint of a pipeline that has room, and the place of each stage; None: none has room."""
    for position, checkpoint in enumerate(CHECKPOINTS[pipeline]):
        places = divided(needs(pipeline, position), [cards.bytes] * cards.number)
        if all(place.cards for place in places) and max(taken(places, cards)) <= MOST:
            return checkpoint.name, places
    return None


@cache
def needs(pipeline: str, position: int) -> tuple[CardNeed, ...]:
    """What the stages of a pipeline on cards take with the checkpoint at this position of CHECKPOINTS."""
    with tempfile.TemporaryDirectory() as directory:
        CHECKPOINTS[pipeline][position].write(Path(directory))
        config = PIPELINES.named(pipeline)
        found = (need_of(config, stage, Path(directory)) for stage in config.stages.values() if stage.runner.torch)
        return tuple(need for need in found if need is not None)


def taken(places: Sequence[CardPlace], cards: Cards) -> Iterator[float]:
    """Yield the part of each card that the shares and what the other stages need make up."""
    for number in range(cards.number):
        here = [place for place in places if number in place.cards]
        yield sum(place.need.bytes / cards.bytes if place.share is None else place.share for place in here)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/card-files", description="Write the files of deploy/cards.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is another")
    check = parser.parse_args().check
    texts = made()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.env")}
    stale = sorted(name for name in {*texts, *there} if texts.get(name) != there.get(name))
    if check:
        sys.exit(f"stale: {', '.join(stale)}: run scripts/card-files" if stale else 0)
    for name in stale:
        if name in texts:
            (FOLDER / name).write_text(texts[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()


if __name__ == "__main__":
    main()
