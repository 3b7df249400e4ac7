"""``divided``: which card each stage has, and which share of it. Pure."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from omni_jobs.cards.need import CardNeed

_MOST: Final = 0.95  # of a card, for the shares of all its stages: the rest is for what nobody reckoned
_HUNDREDTH: Final = 100


class CardPlace(NamedTuple):
    """Where a stage runs.

    cards   the numbers of its cards; empty: none has room for it
    needed  the least share of a card that would do; None where no card has room
    share   the share to give it: what is left of a card goes to the engines that take a share. None: its engine takes
            what it needs
    """

    need: CardNeed
    cards: tuple[int, ...]
    needed: float | None
    share: float | None

    @property
    def is_given_too_little(self) -> bool:
        """Whether the share that the stage config gives is less than what is needed."""
        given = self.need.share
        return given is not None and self.needed is not None and given < self.needed


class _Group(NamedTuple):
    room: int  # of the card that has least
    cards: tuple[int, ...]


def divided(needs: Sequence[CardNeed], cards: Sequence[int]) -> list[CardPlace]:
    """Divide cards of so many bytes among stages, and return the place of each, in the order of ``needs``.

    The largest is placed first, on the cards with the most room, so that the stages spread; if one finds none so, on
    those with the least room that is enough. An engine of several cards gets cards of one size, because its share is
    the same on all of them.
    """
    chosen = _placed(needs, cards, max)
    if not all(chosen):
        packed = _placed(needs, cards, min)
        chosen = max(chosen, packed, key=lambda each: sum(map(bool, each)))
    return [_place(number, needs, chosen, cards) for number in range(len(needs))]


def _placed(
    needs: Sequence[CardNeed], cards: Sequence[int], prefer: Callable[[Sequence[_Group]], _Group]
) -> list[tuple[int, ...]]:
    """Return the cards of each stage; empty where no card has room for it."""
    room = list(cards)
    chosen: list[tuple[int, ...]] = [()] * len(needs)
    for number in sorted(range(len(needs)), key=lambda each: -needs[each].bytes):
        need = needs[number]
        if groups := list(_groups(need, room, cards)):
            most = prefer(groups).room
            chosen[number] = next(group.cards for group in groups if group.room == most)
            for card in chosen[number]:
                room[card] -= need.bytes
    return chosen


def _groups(need: CardNeed, room: Sequence[int], cards: Sequence[int]) -> Iterator[_Group]:
    """Yield the cards on which an engine could run: neighbours in the order of their room."""
    for size in dict.fromkeys(cards):
        free = [card for card in range(len(cards)) if cards[card] == size and room[card] >= need.bytes]
        free.sort(key=lambda card: -room[card])
        for start in range(len(free) - need.cards + 1):
            group = free[start : start + need.cards]
            yield _Group(room[group[-1]], tuple(sorted(group)))


def _place(
    number: int, needs: Sequence[CardNeed], chosen: Sequence[tuple[int, ...]], cards: Sequence[int]
) -> CardPlace:
    need, own = needs[number], chosen[number]
    if not own:
        return CardPlace(need, (), None, None)
    needed = need.bytes / cards[own[0]]
    if not need.takes_share:
        return CardPlace(need, own, _up(needed), None)
    growth = []  # by which the needs of the engines that take a share may grow, on each of its cards
    for card in own:
        here = [each for each, places in zip(needs, chosen, strict=True) if card in places]
        sharing = sum(each.bytes for each in here if each.takes_share)
        rest = sum(each.bytes for each in here if not each.takes_share)
        growth.append((_MOST * cards[card] - rest) / sharing)
    share = math.floor(round(needed * min(growth) * _HUNDREDTH, 6)) / _HUNDREDTH  # 94.999… is 95
    return CardPlace(need, own, _up(needed), max(_up(needed), share))


def _up(share: float) -> float:
    return min(1.0, math.ceil(share * _HUNDREDTH) / _HUNDREDTH)
