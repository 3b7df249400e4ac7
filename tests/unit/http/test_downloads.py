"""Names of downloads: what a client may ask for, and what the header says so that every browser saves just that."""

import re
from email.message import Message

import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.http.downloads import content_disposition, download_name


@pytest.mark.parametrize(
    ("wanted", "stored", "name"),
    [
        ("", "audio.wav", "audio.wav"),
        ("story", "audio.wav", "story.wav"),
        ("story.wav", "audio.wav", "story.wav"),
        ("story.WAV", "audio.wav", "story.WAV"),
        ("invoice.exe", "audio.wav", "invoice.exe.wav"),  # who writes a link decides no type
        ("invoice.exe", "data", "invoice.exe.bin"),
        ("v1.2 final", "image.png", "v1.2 final.png"),
        ("灯台", "image.png", "灯台.png"),
        ("می‌خواهم", "audio.wav", "می‌خواهم.wav"),  # with a joiner of its script
        ("👩‍👩‍👧", "image.png", "👩‍👩‍👧.png"),
        ("a\"b'c;d%0d*?<>|", "image.png", "a\"b'c;d%0d*?<>|.png"),
        ("x" * 196, "image.png", "x" * 196 + ".png"),
    ],
)
def test_the_name_that_a_client_asks_for_and_the_suffix_of_the_stored_one(wanted: str, stored: str, name: str) -> None:
    assert download_name(wanted, stored, "download") == name


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        *((f"a{character}b", f"U+{ord(character):04X}") for character in "/\\:\0\r\n\t\x1b\x7f\x85\u2028\u2029\ud800"),
        *(
            (f"a{character}b", f"U+{ord(character):04X}")
            for character in "\u202e\u202a\u2066\u200f\u061c\u200b\ufeff\xad"
        ),
        ("../../etc/passwd", "U+002F"),
        *((name, "dot or a space") for name in (".", "..", ".bashrc", "a.", " a", "a ", "...")),
        *((name, "at most 200 bytes") for name in ("x" * 10_000, "x" * 197, "漢" * 66)),
    ],
)
def test_names_that_no_file_should_have(wanted: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(complaint)) as raised:
        download_name(wanted, "image.png", "download")
    assert raised.value.field == "download"


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("audio.wav", 'inline; filename="audio.wav"'),
        ("my story.wav", 'inline; filename="my story.wav"'),
        ("灯台 1.png", "inline; filename=\"__ 1.png\"; filename*=UTF-8''%E7%81%AF%E5%8F%B0%201.png"),
        ('a"b\\c%d;e.png', "inline; filename=\"a_b_c_d_e.png\"; filename*=UTF-8''a%22b%5Cc%25d%3Be.png"),
        ("it's.png", "inline; filename=\"it_s.png\"; filename*=UTF-8''it%27s.png"),
    ],
)
def test_the_header(name: str, header: str) -> None:
    assert content_disposition(name, is_attachment=False) == header
    assert content_disposition(name, is_attachment=True) == header.replace("inline", "attachment", 1)


@pytest.mark.parametrize("name", ["灯台.png", "é\"';=,\\ .png", "a%20b.png", "👩‍👩‍👧.png", "-.png"])
def test_a_reader_of_the_standard_reads_the_name(name: str) -> None:
    header = content_disposition(name, is_attachment=True)
    assert header.isascii()
    assert header.isprintable()
    message = Message()
    message["Content-Disposition"] = re.sub(r' filename="[^"]*";', "", header)  # as readers of filename* do
    assert message.get_filename() == name
