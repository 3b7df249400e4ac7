"""A text that grows: its reports are of bounded size and cost, whatever its length."""

import tracemalloc

from workers.runners.growing_text import GrowingText
from workers.stages.types import Progress


async def test_the_last_report_has_all_of_a_short_text() -> None:
    seen: list[Progress] = []
    text = GrowingText(seen.append, 10)
    for word in ("Good ", "", "morning"):
        text.add(word)
    text.end()
    text.end()
    assert str(text) == "Good morning"
    assert (seen[0].text, seen[0].done) == ("Good ", 1)
    assert (seen[-1].text, seen[-1].done, seen[-1].total, seen[-1].unit) == ("Good morning", 3, 10, "tokens")
    assert len(seen) == 2


async def test_fewer_reports_come_of_a_long_text_and_each_has_all_of_it() -> None:
    seen: list[Progress] = []
    text = GrowingText(seen.append, None)
    pieces = [f"{number:>6}" for number in range(100_000)]
    for piece in pieces:
        text.add(piece)
    text.end()
    assert str(text) == "".join(pieces)
    assert seen[-1].text == str(text)
    assert sum(len(each.text or "") for each in seen) < 50 * len(str(text))


async def test_large_pieces_are_not_joined_for_a_report() -> None:
    text = GrowingText(lambda progress: None, None)
    piece = "x" * 60_000
    tracemalloc.start()
    try:
        for _ in range(10_000):
            text.add(piece)
        text.end()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The joined blocks of 4,096 pieces, and one report of what came in a twentieth of a second at a time.
    assert most < 3 * 10_000 * len(piece)


async def test_counts_never_fall_and_never_pass_the_total() -> None:
    seen: list[Progress] = []
    text = GrowingText(seen.append, 5)
    for tokens in (3, 1, 9, None):
        text.add("x", tokens)
        text.end()
    assert [each.done for each in seen] == [3, 3, 5, 5]


async def test_a_text_that_is_not_shown_is_counted_and_kept() -> None:
    seen: list[Progress] = []
    text = GrowingText(seen.append, 10, is_shown=False)
    text.add("<tool_call>", 4)
    text.end()
    assert str(text) == "<tool_call>"
    assert [(each.text, each.done) for each in seen] == [(None, 4)]
