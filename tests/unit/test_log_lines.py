"""Log lines: no secret and no text of a request stands in one, whoever put it there."""

import json
import logging
import re
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from omni_jobs.http.server_logs import server_config
from omni_jobs.logs import secrets, texts
from omni_jobs.logs.formats import JsonFormat, TextFormat
from omni_jobs.logs.line_filter import LineFilter
from omni_jobs.logs.records import Line, log_lines, texts_of
from omni_jobs.logs.secrets import know, know_secrets
from omni_jobs.settings import Settings

KEY = "omni_" + "Ab_-9" * 8 + "xyz"


@pytest.mark.parametrize(
    "path", [f"/v1/jobs?{KEY}=1", f"/v1/jobs/{KEY}", f"/?k=%6Fmni%5F{KEY[5:]}&b=c", f"/{KEY}{KEY}", f"/a?x={KEY}x"]
)
def test_the_access_log_masks_keys(path: str) -> None:
    args = ("127.0.0.1:1", "GET", path, "1.1", 404)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', args, None)
    assert LineFilter().filter(record)
    line = record.getMessage()
    assert KEY[9:] not in line
    assert "omni_Ab_-" in line or "…" in line
    assert '"GET /' in line
    assert line.endswith("404")


def test_other_lines_stay_as_they_are() -> None:
    args = ("127.0.0.1:1", "GET", "/v1/jobs?state=%41", "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "%s %s %s %s %d", args, None)
    assert LineFilter().filter(record)
    assert record.args == args


def test_errors_and_their_traces_show_no_key() -> None:
    try:
        raise ValueError(f"50% of {KEY} is no number")
    except ValueError as error:
        info = sys.exc_info()
        record = logging.LogRecord("omni_jobs", logging.ERROR, "", 0, "it failed: %s", (error,), info)
    assert LineFilter().filter(record)
    shown = logging.Formatter().format(record)
    assert KEY[9:] not in shown
    assert "it failed: 50% of omni_Ab_-… is no number" in shown
    assert "Traceback" in shown


SECRET = "Tr0ub4dor-zebra"


def line_of(message: str, *args: object) -> str:
    record = logging.LogRecord("omni_jobs", logging.WARNING, "", 0, message, args, None)
    assert LineFilter().filter(record)
    return logging.Formatter().format(record)


@pytest.mark.parametrize(
    "text",
    [
        f"cannot connect to postgresql://omni:{SECRET}@db:5432/omni_jobs",
        f"redis://:{SECRET}@broker:6379/0 is away",
        f"redis://:{SECRET}/with@a@slash@broker:6379/0 is away",
        f"https://{SECRET}@host/path",
        f"Authorization: Bearer {SECRET}",
        f"{{'authorization': 'Basic {SECRET}'}}",
        f"password={SECRET} host=db",
        f'{{"api_key": "{SECRET}"}}',
        f"https://bucket/key?X-Amz-Signature={SECRET}&X-Amz-Credential={SECRET}/us-east-1",
        f"Cookie: session={SECRET}; other={SECRET}",
        f"Incorrect API key provided: sk-proj-{SECRET}",
        f"aws_secret_access_key = {SECRET}",
        f"the link data:image/png;base64,{SECRET * 4} is none",
        f"at%20postgresql%3A%2F%2Fomni%3A{SECRET}%40db",
        f"at%252520postgresql%25253A%25252F%25252Fomni%25253A{SECRET}%252540db",
        f"Authorization: Token {SECRET} {SECRET}",
        f"Proxy-Authorization: Digest username=me, response={SECRET}",
        f"[(b'host', b'here'), (b'x-api-key', b'{SECRET}'), (b'authorization', b'ApiKey {SECRET}')]",
        f"[(b'cookie', b'a=b; session={SECRET}')]",
        f'{{"password": "two words {SECRET}", "user": "me"}}',
        json.dumps(json.dumps({"password": f'with a " {SECRET}'})),
        f"{{'password': 'it\\'s {SECRET}'}}",
        f"PGPASSWORD=a,b;{SECRET} psql",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"github_pat_{SECRET}{SECRET}",
        f"x{'y' * 60}_api_key={SECRET}",
    ],
)
def test_a_secret_is_known_by_its_form(text: str) -> None:
    assert SECRET not in line_of("it failed: %s", ValueError(text))
    assert SECRET not in line_of(text)


def test_a_password_that_is_a_word_hides_no_name_that_tells_of_another_secret() -> None:
    know(["secret"])
    assert line_of(f"aws_secret_access_key = {SECRET}, said secret") == "aws_…_access_key = … said …"


def test_a_secret_of_the_settings_is_known_by_itself() -> None:
    settings = Settings(
        database_url="postgresql://omni:p%40ss-w0rd@db/omni", broker_url=SecretStr("redis://:hunter2x@b")
    )
    know_secrets(settings)
    assert line_of("said p@ss-w0rd, p%40ss-w0rd and hunter2x") == "said …, … and …"
    assert line_of("hunter2xx is another word") == "hunter2xx is another word"
    know([secret := 'long-"secret"-of-nobody'])
    assert line_of("at xlong-%%22secret%%22-of-nobodyx, %s, %s", secret, json.dumps(secret)) == 'at x…x, …, "…"'


@pytest.mark.parametrize(
    "text",
    ["max_tokens: at most 4", "https://host:8000/v1/jobs says no", "the key of echo.first in the broker is no list"],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert line_of(text) == text


def test_no_line_quotes_the_texts_of_a_stage_run_in_flight() -> None:
    prompt = 'My neighbour Ulrich said "never again"\nand went to the harbour of Kiel at dawn.'
    texts.hide(7, {"messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}], "model": "a-model"})
    try:
        lines = [prompt, repr(prompt), json.dumps({"m": prompt}), prompt[9:50], f"x {prompt[20:45]}… y"]
        for line in lines:
            shown = line_of("the server said: %s", line)
            assert "[text]" in shown
            assert not {"Ulrich", "never", "harbour"} & set(shown.replace(chr(34), " ").split())
        assert line_of("the model a-model is unknown") == "the model a-model is unknown"
    finally:
        texts.show(7)
    assert "Ulrich" in line_of("it said: %s", prompt)


def test_lines_of_one_record_are_lines_of_their_own() -> None:
    record = logging.LogRecord("omni_jobs", logging.INFO, "", 0, "two", (), None)
    record.lines = [
        Line("job queued", ("job",), ("job-1",)),
        Line("stage run running", ("job", "attempt"), ("job-2", 1)),
    ]
    assert LineFilter().filter(record)
    first, second = (json.loads(line) for line in JsonFormat("api").format(record).splitlines())
    assert (first["message"], first["job"], first["process"]) == ("job queued", "job-1", "api")
    assert (second["message"], second["attempt"]) == ("stage run running", 1)
    text = TextFormat(logging.Formatter("%(levelname)s %(message)s")).format(record)
    assert text == "INFO job queued  job=job-1\nINFO stage run running  job=job-2 attempt=1"


FORGED = "no\nINFO     job completed  job=job-1\r\nINFO     \u2028job completed\x85job completed"


def test_a_message_of_several_lines_is_one_line_to_whoever_counts() -> None:
    """Neither a message, nor a traceback, nor a field can look like a line, or a field, of its own."""
    record = logging.LogRecord("omni_jobs", logging.INFO, "", 0, "said: %s", (ValueError(FORGED),), error_of(FORGED))
    assert LineFilter().filter(record)
    text = TextFormat(logging.Formatter("%(levelname)s %(message)s")).format(record)
    first, *more = text.splitlines()
    assert first == "INFO said: no"
    assert len(more) > 4
    assert all(line.startswith("    ") for line in more)
    assert len(JsonFormat("api").format(record).splitlines()) == 1
    for value in ("a b", "a\nb", "a=b", 'a"b', "a\u2028b", "a\tb", "a\\nb c"):
        (shown,) = texts_of([Line("stage run failed", ("job", "because", "worker"), ("job-1", value, ""))])
        assert shown == f"stage run failed  job=job-1 because={json.dumps(value, ensure_ascii=False)} worker="
    assert texts_of([Line("job queued", ("job", "size"), ("job-1", 5))]) == ["job queued  job=job-1 size=5"]


def error_of(message: str) -> tuple[type[BaseException], BaseException, None]:
    return ValueError, ValueError(message), None


def test_what_cannot_be_shown_harms_nobody() -> None:
    class Textless:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert line_of("%d of them", "seven") == "'%d of them', whose arguments cannot be shown: TypeError"
    assert line_of("it is %s", Textless()) == "'it is %s', whose arguments cannot be shown: RuntimeError"
    assert line_of("50% of it") == "50% of it"
    assert "\ud800" not in line_of("half a character: %s", "\ud800")


def test_what_another_handler_made_of_a_traceback_is_not_taken() -> None:
    record = logging.LogRecord("omni_jobs", logging.ERROR, "", 0, "it failed", (), error_of(f"password={SECRET}"))
    record.stack_info = f"Stack: password={SECRET}"
    logging.Formatter().format(record)
    assert LineFilter().filter(record)
    shown = logging.Formatter().format(record)
    assert "password=…" in shown
    assert SECRET not in shown


@pytest.mark.timeout(60)  # which some of these took, before what is repeated was bounded
@pytest.mark.parametrize(
    "text",
    [
        "://:" * 300_000,
        "://" + ":" * 1_000_000,
        "eyJaaaaaaaa-" * 100_000,
        "a-" * 500_000,
        "token=\"'\\" * 100_000,
        "cookie" + " " * 1_000_000,
        "data:" * 200_000,
        "-----BEGIN PRIVATE KEY-----" * 40_000,
        "%25" * 300_000,
        "omni_" * 200_000,
        "secret_access_key_" * 60_000,
        "authorization" * 80_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_hostile_text_is_cut_and_soon_looked_through(text: str) -> None:
    spaced = " ".join(text[at : at + 4000] for at in range(0, len(text), 4000))
    for hostile in (text, spaced, f"{text}\nthe last line"):
        assert len(line_of("it failed: %s", hostile)) < 20_000
    shown = line_of("it failed: %s", f"{text}\nthe last line")
    assert shown.endswith("[…]\nthe last line") or "PRIVATE KEY" in text


def test_no_half_of_a_secret_is_left_where_a_text_is_cut() -> None:
    for before in range(12_240, 12_300, 3):
        assert SECRET[:6] not in line_of("a" * (before - 1) + f" password={SECRET}" + " b" * 9000)


@pytest.mark.timeout(60)
def test_many_long_texts_are_soon_looked_for() -> None:
    prompts = [
        "a" * 40_000,
        *(f"{number} " + " ".join(f"word{number * 7 + each}" for each in range(9000)) for number in range(63)),
    ]
    for number, prompt in enumerate(prompts):
        texts.hide(number, {"messages": [{"role": "user", "content": prompt}]})
    try:
        for _ in range(5):
            line = line_of("the server said: %s and %s", prompts[60][2000:2023], "other words " * 1000)
            assert "said: [text] and other words" in line
        every_piece = " / ".join(prompts[60][at : at + 23] for at in range(0, 12_000, 100))
        assert "word" not in line_of("%s", every_piece + " or " + "a" * 2000)
    finally:
        for number in range(64):
            texts.show(number)


def test_lines_that_share_a_record_are_lines_for_any_formatter(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_lines(
            logging.getLogger("omni_jobs"), logging.INFO, [Line("one", ("job",), ("a",)), Line("two", ("job",), ("b",))]
        )
    assert caplog.messages == ["one  job=a\ntwo  job=b"]


def test_open_pages_that_poll_have_no_access_line_unless_the_answer_is_an_error() -> None:
    config = server_config(Settings(root_path="/below"))
    assert config["loggers"]["uvicorn.access"]["filters"] == ["polls"]
    given = dict(config["filters"]["polls"])
    polls = given.pop("()")(**given)

    def is_written(path: str, status: int) -> bool:
        args = ("1.2.3.4:5", "GET", path, "1.1", status)
        return bool(
            polls.filter(logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "%s %s %s %s %d", args, None))
        )

    assert not is_written("/below/fragments/jobs?status=failed", 200)
    assert not is_written("/below/fragments/overview", 304)
    assert is_written("/below/fragments/overview", 503)
    assert is_written("/below/jobs", 200)
    assert is_written("/fragments/overview", 200)


@pytest.mark.parametrize("form", [form for form, _ in secrets._FORMS], ids=range(len(secrets._FORMS)))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_form_of_a_secret_is_without_its_sign(form: re.Pattern[str], data: st.DataObject) -> None:
    """A text without a sign is not looked through."""
    text = data.draw(st.from_regex(form))
    assert len(text) >= secrets._OF_A_MEDIUM or any(sign in text.casefold() for sign in secrets._SIGNS)
