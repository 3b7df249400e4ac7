"""The form of a try: its fields are what a pipeline declares, and what they take is what the pipeline takes."""

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from omni_jobs.dashboard.declared_fields import DeclaredField, FieldKind
from omni_jobs.dashboard.trial_form import TrialForm
from omni_jobs.errors import InvalidRequest
from omni_jobs.http.form_reader import Form
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.parameter_limits import Bounds
from omni_jobs.requests import JobRequest
from omni_jobs.requests.options import parameters_of

CONFIGS = Path(__file__).parents[3] / "stage_configs"
FORMS = {name: TrialForm.of(pipeline) for name, pipeline in load_pipelines(CONFIGS).items()}
FIELDS = [(form, stage, field) for form in FORMS.values() for stage in form.stages for field in stage.fields]
DEPENDS_ON_OTHERS = {"min_tokens", "top_logprobs", "response_format", "lora", "language", "network", "temperature"}
"""What may be refused within its bounds: by another parameter, by the engine, or by the model."""
NOT_EACH = {"num_frames"}
"""What is refused within its bounds unless it is one of some numbers."""

Found = tuple[TrialForm, Any, DeclaredField]


def of_kind(*kinds: FieldKind) -> st.SearchStrategy[Found]:
    return st.sampled_from([each for each in FIELDS if each[2].kind in kinds])


def bounds_of(form: TrialForm, field: DeclaredField) -> Bounds:
    _, stage, name = field.name.split(".")
    return form.pipeline.stage(stage).bounds[name]


def sent(form: TrialForm, stage: Any, field: DeclaredField, texts: list[str]) -> tuple[Any, str | None]:
    """The value that a form with these texts asks for, and the field beside which its error stands; None: it is taken.

    The pipeline checks it as it checks what clients send.
    """
    medium = {kind: [memoryview(b"x")] for kind in form.files}
    made = Form({"text": ["Hello"], "modalities": list(stage.modalities), field.name: texts}, medium)
    request, problems = form.request(made)
    if problems:
        (place,) = problems
        return None, place
    value = (request.get("stages") or {}).get(stage.stage, {}).get(field.label)
    try:
        parsed = JobRequest.parse(request)
        parameters_of(parsed, form.pipeline, form.pipeline.stages_for(stage.modalities))
    except InvalidRequest as error:
        return value, form.place_of(error.field, made)
    return value, None


@st.composite
def within(draw: st.DrawFn, bounds: Bounds) -> float:
    """A number that the bounds allow."""
    least = bounds.at_least if bounds.at_least is not None else bounds.more_than
    most = bounds.at_most if bounds.at_most is not None else bounds.less_than
    assert least is not None
    if bounds.is_whole:
        step = int(bounds.multiple_of or 1)
        begin = math.ceil(least / step)
        end = 10**6 if most is None else math.floor(most / step)
        return step * draw(st.integers(begin, end))
    return draw(
        st.floats(least, most, exclude_min=bounds.more_than is not None, exclude_max=bounds.less_than is not None)
    )


@given(found=of_kind("whole number", "number"), data=st.data())
def test_a_number_within_its_bounds_is_taken_as_it_is(found: Found, data: st.DataObject) -> None:
    form, stage, field = found
    value = data.draw(within(bounds_of(form, field)))
    asked, refused_at = sent(form, stage, field, [repr(value)])
    assert asked == value
    assert type(asked) is type(value)
    may_be_refused = DEPENDS_ON_OTHERS | NOT_EACH
    assert refused_at is None or (field.label in may_be_refused and refused_at.startswith(f"stages.{stage.stage}."))


@given(found=of_kind("whole number", "number"), data=st.data())
def test_a_number_beyond_its_bounds_is_refused_with_its_field(found: Found, data: st.DataObject) -> None:
    form, stage, field = found
    bounds = bounds_of(form, field)
    numbers: st.SearchStrategy[float] = (
        st.integers(-(1 << 70), 1 << 70) if bounds.is_whole else st.floats(-1e300, 1e300, allow_nan=False)
    )
    value = data.draw(numbers.filter(lambda each: bounds.problem(each) is not None))
    assert sent(form, stage, field, [repr(value)])[1] == field.name


@given(
    found=of_kind("whole number", "number"),
    text=st.one_of(
        st.text(min_size=1), st.sampled_from(["1_0", "١", "0x1", "1,5", "NaN", "1e999", "007", "1}", "--1"])
    ),
)
def test_what_is_no_number_is_refused_with_its_field(found: Found, text: str) -> None:
    form, stage, field = found
    with suppress(ValueError):
        assume(not math.isfinite(float(text)) or "_" in text or not text.isascii() or text == "007")
    assert sent(form, stage, field, [text])[1] == field.name


@pytest.mark.parametrize(
    "found", [each for each in FIELDS if each[2].kind == "whole number"], ids=lambda each: each[2].name
)
def test_a_fraction_is_no_whole_number(found: Found) -> None:
    form, stage, field = found
    assert sent(form, stage, field, ["2.5"])[1] == field.name


@given(found=of_kind("choice", "choices"), data=st.data())
def test_choices_are_taken_and_nothing_else(found: Found, data: st.DataObject) -> None:
    form, stage, field = found
    several = st.lists(
        st.sampled_from(sorted(field.choices)), min_size=1, unique=True, max_size=1 if field.kind == "choice" else 9
    )
    texts = data.draw(several)
    asked, refused_at = sent(form, stage, field, texts)
    values = [field.choices[text] for text in texts]
    assert asked == (values[0] if field.kind == "choice" else values)
    assert refused_at is None or field.label in DEPENDS_ON_OTHERS
    other = data.draw(st.text(min_size=1).filter(lambda text: text not in field.choices))
    assert sent(form, stage, field, [other])[1] == field.name


TYPED = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1)


@given(found=of_kind("text", "long text"), text=TYPED)
def test_a_text_is_taken_letter_by_letter(found: Found, text: str) -> None:
    form, stage, field = found
    asked, refused_at = sent(form, stage, field, [text])
    assert asked == text
    assert refused_at in (None, field.name)
    assert refused_at is None or field.label in DEPENDS_ON_OTHERS | {"prompt"}


@given(found=of_kind("lines"), lines=st.lists(TYPED.filter(lambda text: "\n" not in text), min_size=1, max_size=20))
def test_lines_are_a_list_whose_bounds_hold(found: Found, lines: list[str]) -> None:
    form, stage, field = found
    assume(not lines[0].lstrip().startswith("["))
    asked, refused_at = sent(form, stage, field, ["\r\n".join(lines)])
    assert asked == lines
    fits = len(lines) <= 16 and all(len(line) <= 256 for line in lines)
    assert refused_at == (None if fits else field.name)


def field_of(form: TrialForm, name: str) -> DeclaredField:
    return next(field for stage in form.stages for field in stage.fields if field.name == name)


def test_a_line_that_holds_ends_of_lines_is_written_as_json() -> None:
    stop = field_of(FORMS["chat"], "stages.llm.stop")
    assert stop.read(['["\\n\\n", "[END]"]']) == ["\n\n", "[END]"]
    assert stop.read(["[END]"]) == ["[END]"]


def test_an_object_is_written_as_json() -> None:
    form = FORMS["chat"]
    field = field_of(form, "stages.llm.response_format")
    assert field.kind == "json"
    assert field.read(['{"type": "json_object"}']) == {"type": "json_object"}
    for wrong in ("{", '1, "x": 2', "[" * 5000, '"\\ud800"'):
        with pytest.raises(InvalidRequest, match="is no JSON") as raised:
            field.read([wrong])
        assert raised.value.field == field.name


def test_a_parameter_is_shown_with_its_default_its_bounds_and_what_it_is() -> None:
    media, chat = FORMS["echo_media"], FORMS["chat"]
    steps = field_of(media, "stages.picture.steps")
    assert (steps.kind, steps.default, steps.hint) == (
        "whole number", "8", "after each of which there is a preview; 1 to 200",
    )  # fmt: skip
    width = field_of(media, "stages.picture.width")
    assert (width.default, width.hint) == ("", "pixels; empty: that of the first picture, or 512; 64 to 2,048")
    assert field_of(chat, "stages.llm.temperature").default == "0.7"  # the pipeline file's
    assert field_of(chat, "stages.llm.top_p").hint == "more than 0 and at most 1"
    assert list(field_of(media, "stages.answer.words").choices) == ["yes", "no"]
    assert field_of(FORMS["qwen_image"], "stages.encode.negative_prompt").default == '" "'
    assert [field.label for stage in chat.stages for field in stage.fields] == list(
        chat.pipeline.stage("llm").parameters_type.model_fields
    )


def test_an_empty_form_sets_nothing_and_says_what_is_missing() -> None:
    def problems(name: str, texts: Mapping[str, list[str]] | None = None) -> Mapping[str, str]:
        return FORMS[name].request(Form(texts or {}, {}))[1]

    empty = {field.name: [""] for _, stage, field in FIELDS if stage in FORMS["voice"].stages}
    assert problems("voice", empty) == {"text": "type something or attach a file"}
    assert problems("chat") == {"text": "type something"}
    only_pictures = FORMS["upscale"].pipeline.model_copy(update={"accepts": ("image",)})
    assert TrialForm.of(only_pictures).request(Form({}, {}))[1] == {"image": "attach a file"}
    request, wrong = FORMS["echo"].request(Form({"text": ["Hello"], "stages.first.delay_s": [""]}, {}))
    assert wrong == {}
    assert request == {
        "model": "echo",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    }


def test_who_speaks_is_answered_aloud() -> None:
    chosen = {name: [each.modality for each in form.outputs if each.is_chosen] for name, form in FORMS.items()}
    assert chosen["voice"] == ["text", "audio"]
    assert (chosen["chat"], chosen["speech"], chosen["qwen_image"]) == (["text"], ["audio"], ["image"])


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("messages.0.content", "system"),
        ("messages.1.content.0.input_audio.data", "audio"),
        ("messages.1.content.1.image_url.url", "image"),
        ("messages.1.content.2.text", "text"),
        ("messages.1.content.image_url", "image"),  # it is missing
        ("messages", "text"),
        ("stages.picture.width", "stages.picture.width"),
        ("stages.answer.stop.3", "stages.answer.stop"),
        ("stages.nowhere", ""),
        ("audio.voice", "audio.voice"),
        ("modalities.0", "modalities"),
        ("seed", "seed"),
        ("body", ""),
        (None, ""),
    ],
)
def test_an_error_stands_beside_its_field(field: str | None, place: str) -> None:
    files = {"audio": [memoryview(b"a")], "image": [memoryview(b"b")]}
    form = Form({"system": ["Be brief"], "text": ["Hello"]}, files)
    assert FORMS["echo_media"].place_of(field, form) == place


def test_every_problem_is_told_at_once() -> None:
    texts = {"text": ["x"], "seed": ["-1"], "stages.first.delay_s": ["soon"], "gone": ["1"]}
    _, problems = FORMS["echo"].request(Form(texts, {}))
    assert set(problems) == {"seed", "stages.first.delay_s", ""}
    assert "'gone'" in problems[""]


def test_a_float_keeps_its_digits() -> None:
    form, stage, field = next(each for each in FIELDS if each[2].name == "stages.llm.temperature")
    assert sent(form, stage, field, [repr(sys.float_info.epsilon)])[0] == sys.float_info.epsilon
