from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.cards import CardNeed, divided

GB = 10**9


def need(stage: str, gb: float, *, takes_share: bool = True, cards: int = 1) -> CardNeed:
    """A stage that takes so much with CUDA's context."""
    return CardNeed("p", stage, round(gb * GB) - GB // 2, 0, 0, 0, cards, None, takes_share)


NEEDS = st.lists(
    st.builds(
        need,
        st.just("s"),
        st.floats(0.6, 100),
        takes_share=st.booleans(),
        cards=st.integers(1, 3),
    ),
    max_size=8,
)
CARDS = st.lists(st.sampled_from([24 * GB, 48 * GB, 80 * GB]), min_size=1, max_size=4)


@given(NEEDS, CARDS)
def test_no_card_holds_more_than_it_has(needs: list[CardNeed], cards: list[int]) -> None:
    places = divided(needs, cards)
    assert [place.need for place in places] == needs
    for number, size in enumerate(cards):
        here = [place for place in places if number in place.cards]
        taken = sum(place.need.bytes for place in here)
        assert taken <= size
        given = sum(max(place.share or 0, place.need.bytes / size) for place in here)
        assert given <= max(0.95, taken / size) + 0.01 * len(here) + 1e-9
    for place in places:
        assert len(place.cards) in (0, place.need.cards)
        if place.cards:
            assert place.needed is not None
            assert place.needed >= min(1.0, max(place.need.bytes / cards[card] for card in place.cards) - 1e-9)
            assert (place.share is not None) is place.need.takes_share
            assert place.share is None or place.needed <= place.share <= 1
        else:
            for kind in set(cards):
                free = [
                    size - sum(each.need.bytes for each in places if number in each.cards)
                    for number, size in enumerate(cards)
                    if size == kind
                ]
                assert sum(left >= place.need.bytes for left in free) < place.need.cards


def test_stages_spread_over_cards_and_pack_where_they_must() -> None:
    spread = divided([need("large", 20), need("small", 5), need("tiny", 2)], [24 * GB, 24 * GB])
    assert [place.cards for place in spread] == [(0,), (1,), (1,)]
    packed = divided([need("a", 10), need("b", 10), need("c", 20)], [24 * GB, 20 * GB])
    assert all(place.cards for place in packed)


def test_what_is_left_goes_to_engines_that_take_a_share() -> None:
    [llm, diffusion] = divided([need("llm", 20), need("diffusion", 6, takes_share=False)], [80 * GB])
    assert (llm.needed, llm.share) == (0.25, 0.87)  # 0.95 of the card, less the 6 GB
    assert (diffusion.needed, diffusion.share) == (0.08, None)


def test_an_engine_on_several_cards() -> None:
    [place] = divided([need("llm", 60, cards=2)], [80 * GB, 24 * GB, 80 * GB])
    assert place.cards == (0, 2)
    assert divided([replace(place.need, cards=4)], [80 * GB] * 3)[0].cards == ()
