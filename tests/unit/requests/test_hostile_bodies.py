"""JSON made to cost much: what it costs is bounded, and no thread has to wait for it."""

import gc
import json
import random
import re
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import InvalidInput, InvalidRequest, NotFound, RequestTooLarge
from omni_jobs.intake.admissions import Admissions
from omni_jobs.intake.kept_errors import results_of
from omni_jobs.intake.lanes import Lanes
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.prompts.renderers import Renderers
from omni_jobs.requests import Submission, Upload, admit, parse
from omni_jobs.requests import json_body as bodies
from omni_jobs.requests.json_body import canonical, parse_body
from omni_jobs.settings import Settings
from tests import hostile

SECONDS = 4.0  # a tenth is taken; most of these took minutes, or gigabytes
STOOD_S = 1.0  # by far the most is 0.1; one call of 3.2 s was seen


@pytest.fixture(scope="module")
def pipelines() -> Pipelines:
    return load_pipelines(Path(__file__).parents[3] / "stage_configs")


@contextmanager
def others() -> Iterator[list[float]]:
    """For how long another thread had to stand, at the most."""
    stood, over = [0.0], threading.Event()

    def look() -> None:
        while not over.is_set():
            begin = time.perf_counter()
            time.sleep(0.001)
            stood[0] = max(stood[0], time.perf_counter() - begin)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield stood
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("name", hostile.BODIES)
def test_a_body_is_refused_at_little_cost(pipelines: Pipelines, name: str) -> None:
    body = hostile.BODIES[name]()
    assert len(body) <= hostile.BODY_BYTES + 100
    with others() as stood:
        begin = time.perf_counter()
        with pytest.raises(InvalidInput):
            admit(parse(body, Settings()), pipelines, Settings())
        took = time.perf_counter() - begin
    assert took < SECONDS
    assert stood[0] < STOOD_S


def texts() -> dict[str, str]:
    """Texts of 8 MiB, whose marks are none of JSON's."""
    size = Settings().max_text_bytes
    return {
        "commas": "," * size,
        "quotes": '"' * size,
        "backslashes": "\\" * size,
        "code": 'f({"a": [1, 2], "b": "\\n"})\n'.ljust(32) * (size // 32),
        "chinese": "中" * (size // 3),
        "emoji": "🙂" * (size // 4),
    }


@pytest.mark.parametrize("name", texts())
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_longest_text_is_taken_whatever_it_holds(pipelines: Pipelines, name: str, ascii_only: bool) -> None:
    text = texts()[name]
    body = {"model": "echo", "messages": [{"role": "user", "content": text}], "metadata": {"k": "v"}}
    found = admit(parse(json.dumps(body, ensure_ascii=ascii_only).encode(), Settings()), pipelines, Settings())
    assert found.request["messages"][0]["content"] == text
    assert found.metadata == {"k": "v"}


def tree(random_: random.Random, depth: int = 0) -> Any:
    """Any JSON, some of its strings long, plain and not."""
    kind = random_.randrange(8 if depth < 4 else 5)
    if kind == 0:
        return random_.choice([None, True, False, 0, -1, 1.5, 1e300, 2**63])
    if kind == 1:
        return random_.choice(["A", "a/b+c="]) * random_.randrange(200_000)
    if kind == 2:
        return random_.choice(['"', "\\", "/", "\n", "é", "中", "🙂", '\\"', "a, [b] {c}", "\x7f"]) * random_.randrange(
            50_000
        )
    if kind < 5:
        return "".join(random_.choices('a"\\/,[]{}:\u00e9\u4e2d', k=random_.randrange(20)))
    if kind < 7:
        return {f"k{number}": tree(random_, depth + 1) for number in range(random_.randrange(5))}
    return [tree(random_, depth + 1) for _ in range(random_.randrange(5))]


@pytest.fixture(params=[None, 509], ids=["slices as they are", "short slices"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones end within every string, escape and number that the seeds make."""
    if request.param is not None:
        monkeypatch.setattr(bodies, "SLICE", 2 * request.param + 1)
        monkeypatch.setattr(bodies, "_MATCHED", request.param)


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("seed", range(40))
def test_what_is_read_is_what_json_reads(seed: int) -> None:
    random_ = random.Random(seed)
    value = {"a": tree(random_), "b": tree(random_), "long": "A" * 100_000} | media(random_)
    for options in ({}, {"ensure_ascii": False}, {"indent": 3}):
        body = json.dumps(value, **options).encode()
        for written in (body, bytearray(body.replace(b"/", b"\\/"))):  # as PHP writes it
            found = parse_body(written, 1 << 30, 1 << 30)
            assert b"".join(canonical(found)) == json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
            assert whole(found) == value


def media(random_: random.Random) -> dict[str, object]:
    """Media in three places, two of them long."""
    encoded = [random_.choice(["A", "a/b+c="]) * random_.randrange(66_000, 200_000) for _ in range(2)]
    parts = [{"input_audio": {"data": encoded[0]}}, {"image_url": {"url": "data:image/png;base64,AAAA"}}]
    return {"messages": [{"content": "Look:"}, {"content": parts}], "prompt_embeds": {"data": encoded[1]}}


def whole(value: object) -> object:
    """The tree with the text of its Uploads, of which a ``str`` was never made: their strings are long."""
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, Upload):
        assert isinstance(value.encoded, memoryview)
        return str(value.encoded, "ascii")
    return value


def test_a_long_string_is_a_medium_where_media_stand_and_nowhere_else() -> None:
    long = "A" * 100_000
    places = [
        {"metadata": {"data": long}},
        {"messages": [{"content": long}, {"content": [{"text": long}, {"image_url": long}, {"data": long}]}]},
        {"messages.0.content.0.input_audio": {"data": long}, "messages": {"0": {"content": [{"url": long}]}}},
        {"prompt_embeds": [{"data": long}], "data": long},
    ]
    for value in places:
        assert parse_body(json.dumps(value).encode(), 1 << 30, 1 << 30) == value


def test_long_strings_that_are_no_media_are_text() -> None:
    value = {"messages": [{"content": "Look:"}, {"content": [{"text": "A" * 300_000}, {"text": "B" * 300_000}]}]}
    parse_body(json.dumps(value).encode(), 1 << 30, 600_000)
    with pytest.raises(RequestTooLarge, match="at most 599999 bytes of text") as refused:
        parse_body(json.dumps(value).encode(), 1 << 30, 599_999)
    assert re.fullmatch(r"messages\.1\.content\.[01]\.text", refused.value.field or "")


class Body(bytearray):
    """A body that one can see freed."""


@contextmanager
def no_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("name", hostile.BODIES)
def test_a_body_is_freed_at_once(name: str, pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error to which its own traceback leads keeps the body until the collector comes, and then all threads wait."""
    monkeypatch.setattr(hostile, "BODY_BYTES", 1 << 20)

    def looked_at() -> list[weakref.ref[object]]:
        body = Body(hostile.BODIES[name]())
        seen: list[weakref.ref[object]] = [weakref.ref(body)]
        try:
            admit(parse(body, Settings()), pipelines, Settings())
        except InvalidInput as error:
            seen.append(weakref.ref(error))
        return seen

    with no_collector():
        assert [each() for each in looked_at() if each() is not None] == []


async def test_refusals_that_are_kept_keep_nothing_else(pipelines: Pipelines) -> None:
    """Those of a bulk's lines stand in a list, to which the traceback of each would lead."""
    settings = Settings()
    admissions = Admissions(settings, pipelines, Renderers(settings), MediaWall(settings), Lanes(1))
    body = json.dumps({"model": "nobody", "messages": [{"role": "user", "content": "x"}]}).encode()

    async def refused() -> list[weakref.ref[object]]:
        bodies = [Body(b"{"), *(Body(body) for _ in range(3))]
        not_json, *parsed = results_of(lambda line: parse(line, settings), bodies)
        submissions = [each for each in parsed if isinstance(each, Submission)]
        answers = [not_json, *await admissions.admit(submissions, wait_for_decoders=True)]
        assert [type(answer) for answer in answers] == [InvalidRequest, NotFound, NotFound, NotFound]
        return [weakref.ref(each) for each in bodies]

    with no_collector():
        assert [each() for each in await refused() if each() is not None] == []


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("seed", range(40))
def test_what_is_cut_or_damaged_is_what_json_refuses(seed: int) -> None:
    random_ = random.Random(seed)
    whole = json.dumps({"a": tree(random_), "long": "A" * 100_000, "b": tree(random_)}).encode()
    for _ in range(20):
        body = bytearray(whole[: random_.randrange(len(whole))] if random_.random() < 0.3 else whole)
        for _ in range(random_.randrange(3)):
            body[random_.randrange(len(body))] = random_.choice(b'"\\,{}[]:a\x00\x01\x80 ')
        try:
            expected = json.loads(bytes(body))
        except ValueError:
            with pytest.raises(InvalidInput):
                parse_body(bytes(body), 1 << 30, 1 << 30)
            continue
        try:
            found = parse_body(bytes(body), 1 << 30, 1 << 30)
        except InvalidRequest as error:
            assert re.search(r"U\+|twice|a key has|64 bits", str(error))  # noqa: PT017 — of what JSON takes, these are refused
        else:
            assert found == expected


def test_the_bounds_say_what_is_wrong() -> None:
    for name, complaint in (
        ("unknown_keys", "more than 50000 values"),
        ("doubled_key", "40001 keys; at most 256"),
        ("doubled_key_of_few", "this key is given twice"),
        ("spaces", "outside its strings"),
        ("escapes", "more text than is taken"),
        ("long_key", "a key has more than"),
    ):
        with pytest.raises((InvalidRequest, RequestTooLarge), match=complaint):
            parse(hostile.BODIES[name](), Settings())


@pytest.mark.parametrize("space", [0, 40_000])
def test_a_long_key_is_refused_however_far_its_colon_is(space: int) -> None:
    """Its name in the outline is drawn at random: as a key of the metadata it would give another digest each time."""
    body = b'{"metadata": {"%b"%b: "x"}}' % (b"k" * 70_000, b" " * space)
    with pytest.raises(InvalidRequest, match="a key has more than 65536 bytes"):
        parse_body(body, 1 << 30, 1 << 30)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "18446744073709551616", "-9223372036854775809", "1" * 5000])
def test_numbers_beyond_64_bits_are_refused(number: str) -> None:
    with pytest.raises(InvalidRequest, match=r"takes more than 64 bits|not valid JSON"):
        parse_body(b'{"stages": {"thinker": {"seed": %b}}}' % number.encode(), 1 << 30, 1 << 30)


def test_numbers_of_64_bits_are_read() -> None:
    body = b"[18446744073709551615, -9223372036854775808, 1.7976931348623157e308]"
    assert parse_body(b'{"n": %b}' % body, 1 << 30, 1 << 30) == {"n": json.loads(body)}
