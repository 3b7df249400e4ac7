"""The drawing of a pipeline: where its boxes stand, and which lines lead from one to another."""

from omni_jobs.dashboard.drawing import BOX_HEIGHT, BOX_WIDTH, Drawing, drawn


def columns(drawing: Drawing) -> dict[str, int]:
    lefts = sorted({box.x for box in drawing.boxes})
    return {box.stage: lefts.index(box.x) for box in drawing.boxes}


def test_a_stage_stands_behind_all_that_feed_it_in_whatever_order_they_are_given() -> None:
    graph = {"joined": ["long", "short"], "begin": [], "short": ["begin"], "middle": ["begin"], "long": ["middle"]}
    drawing = drawn(graph)
    assert columns(drawing) == {"begin": 0, "short": 1, "middle": 1, "long": 2, "joined": 3}
    assert len(drawing.lines) == 5


def test_boxes_neither_overlap_nor_leave_the_drawing() -> None:
    drawing = drawn({"a": [], **{f"b{n}": ["a"] for n in range(4)}, "c": ["b0", "b3"]})
    for box in drawing.boxes:
        assert 0 <= box.x <= drawing.width - BOX_WIDTH
        assert 0 <= box.y <= drawing.height - BOX_HEIGHT
        others = [each for each in drawing.boxes if each is not box and each.x == box.x]
        assert all(abs(each.y - box.y) > BOX_HEIGHT for each in others)


def test_stages_without_lines_stand_behind_the_others_in_short_columns() -> None:
    assert columns(drawn({"a": [], "b": [], "c": []})) == {"a": 0, "b": 0, "c": 1}
    assert columns(drawn({"alone": [], "a": [], "b": ["a"]})) == {"a": 0, "b": 1, "alone": 2}


def test_an_input_that_is_no_stage_has_no_line() -> None:
    drawing = drawn({"a": ["gone"]})
    assert (columns(drawing), list(drawing.lines)) == ({"a": 0}, [])


def test_a_pipeline_without_stages_is_empty() -> None:
    assert drawn({}).boxes == []
