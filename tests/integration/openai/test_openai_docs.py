"""The Python of docs/openai.md runs as it stands, on a real server with real workers."""

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.docs.pages import blocks, page
from tests.integration.api_server import ApiServer
from tests.integration.openai.stock import Stock

PAGE = page("openai.md")


def test_the_examples_run_as_written(
    echo_media: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "*")
    code = "\n".join(blocks(PAGE, "python")).replace(
        "http://127.0.0.1:8000", f"http://{echo_media.host}:{echo_media.port}"
    )
    names: dict[str, Any] = {}
    exec(compile(code, "docs/openai.md", "exec"), names)
    names["client"].close()
    out = capsys.readouterr().out
    assert "Hello there" in out
    assert "A lighthouse stands by the sea" in out
    assert "880 Hz for 0.80 s" in out
    assert "0.00 to 1.10 s: 880 Hz for 1.10 s" in out
    assert (tmp_path / "spoken.wav").read_bytes().startswith(b"RIFF")
    for name, format in (("lighthouse-1.png", "PNG"), ("final.png", "PNG"), ("partial-0.jpg", "JPEG")):
        with Image.open(tmp_path / name) as picture:
            assert picture.format == format
    assert (tmp_path / "answer.mp3").read_bytes().startswith((b"ID3", b"\xff"))
    assert "320x192 for 2 s" in out
    assert re.search(r"^video_[0-9a-f]{32} completed 100$", out, re.MULTILINE)


def test_the_page_quotes_the_warning_of_the_stock_client(stock: Stock) -> None:
    with pytest.warns(DeprecationWarning, match="Sora") as seen:
        stock.client.videos.list()
    assert f"`DeprecationWarning: {seen[0].message}`" in PAGE
