"""Media in a request's messages: base64 as clients write it, data: URLs, and bodies with a byte order mark."""

import base64
import json
from typing import Any

import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.requests.job_request import JobRequest
from omni_jobs.requests.json_body import canonical, parse_body
from omni_jobs.requests.upload import Upload

DATA = bytes(range(256)) * 1_000
PLAIN = base64.b64encode(DATA).decode()
LINES = base64.encodebytes(DATA).decode()
FORMS = {
    "plain": PLAIN,
    "lines": LINES,
    "lines of mail": LINES.replace("\n", "\r\n"),
    "white space around": f"\n  {PLAIN}\t\n",
    "no padding": PLAIN.rstrip("="),
    "alphabet of URLs": base64.urlsafe_b64encode(DATA).decode().rstrip("="),
    "a data URL": f"data:audio/wav;base64,{PLAIN}",
    "a data URL in capitals": f"DATA:audio/wav;BASE64,{PLAIN}",
    "a data URL with a codec": f"data:audio/webm;codecs=opus;base64,{PLAIN}",
    "a data URL in lines": f" data:audio/wav;base64,\n{LINES}",
    "an escaped data URL": f"data:;base64,{PLAIN.replace('+', '%2B').replace('/', '%2f').replace('=', '%3D')}",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_view", [False, True])
def test_base64_is_taken_as_clients_write_it(form: str, is_view: bool) -> None:
    text = FORMS[form]
    encoded: Any = memoryview(text.encode()) if is_view else text
    assert Upload(encoded=encoded).read("data") == DATA


@pytest.mark.parametrize("size", range(1, 9))
def test_every_length_of_padding(size: int) -> None:
    text = base64.b64encode(bytes(size)).decode()
    assert Upload(encoded=text).read("data") == Upload(encoded=text.rstrip("=")).read("data") == bytes(size)


@pytest.mark.parametrize(
    "encoded",
    ["", " \n", "A", "QUFB*", "QQ==QQ==", "QUFBé", "%41%41", "data:audio/wav,QUFB", "data:;base64,",
     "data:;base64,QQ%4",
     "https://example.com/a.wav", PLAIN + "A", PLAIN[:65_535] + "=" + PLAIN,
     "QQ==" + 200_000 * " " + "QQ=="],
)  # fmt: skip
def test_what_is_no_base64_is_refused(encoded: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Upload(encoded=encoded).read("messages.0")
    assert refused.value.field == "messages.0"


def test_a_picture_needs_a_url() -> None:
    with pytest.raises(InvalidRequest, match="must be a data: URL"):
        Upload(encoded=PLAIN).read("url", is_url=True)


def _body(data: str) -> dict[str, Any]:
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "m4a"}}
    return {"model": "x", "messages": [{"role": "user", "content": [part]}]}


def upload_of(tree: dict[str, Any]) -> Upload:
    upload = tree["messages"][0]["content"][0]["input_audio"]["data"]
    assert isinstance(upload, Upload)
    return upload


@pytest.mark.parametrize("form", FORMS)
def test_long_media_are_kept_out_of_the_text_however_they_are_written(form: str) -> None:
    """8 bytes of text are the most, so that a medium that was taken for a text would be refused."""
    body = _body(FORMS[form])
    tree = parse_body(json.dumps(body).encode(), 1 << 20, 8)
    assert upload_of(tree).read("data") == DATA
    JobRequest.parse(tree)
    assert b"".join(canonical(tree)).startswith(b'{"messages":')


def test_the_picture_that_a_video_begins_with_is_no_text() -> None:
    url = f"data:image/png;base64,{PLAIN}"
    tree = parse_body(json.dumps({"prompt": "a boat", "input_reference": {"image_url": url}}).encode(), 1 << 20, 8)
    assert tree["input_reference"]["image_url"].read("image_url", is_url=True) == DATA


@pytest.mark.parametrize("shift", range(7))
def test_escaped_signs_of_base64_do_not_make_a_medium_a_text(shift: int) -> None:
    """As encoders of .NET and Java write them, wherever a slice of the body ends within an escape."""
    data = "+/" * 200_000 + "=" * 2
    for plus, slash, equals in (("\\u002B", "/", "="), ("+", "\\u002f", "\\u003d"), ("\\u002b", "\\/", "\\u003D")):
        written = json.dumps(_body("A" * shift + data))
        written = written.replace("+", plus).replace("/", slash).replace("=", equals)
        encoded = upload_of(parse_body(written.encode(), 4 << 20, 8)).encoded
        assert isinstance(encoded, memoryview)
        assert bytes(encoded) == ("A" * shift + data).encode()


def test_a_line_that_breaks_within_a_string_is_no_json() -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        parse_body(json.dumps(_body(LINES)).replace("\\n", "\n").encode(), 1 << 20, 8)


@pytest.mark.parametrize("data", ["QUFB", PLAIN])
def test_a_byte_order_mark_is_passed_over(data: str) -> None:
    body = json.dumps(_body(data)).encode()
    trees = [parse_body(begin + body, 1 << 20, 1 << 20) for begin in (b"", b"\xef\xbb\xbf")]
    assert len({b"".join(canonical(tree)) for tree in trees}) == 1
    with pytest.raises(InvalidRequest):
        parse_body(b"\xef\xbb\xbf\xef\xbb\xbf" + body, 1 << 20, 1 << 20)


def test_a_long_body_without_media_may_begin_with_a_mark() -> None:
    body = json.dumps({"model": "é" * 30_000}).encode()
    assert parse_body(b"\xef\xbb\xbf" + body, 1 << 20, 1 << 20) == parse_body(body, 1 << 20, 1 << 20)
