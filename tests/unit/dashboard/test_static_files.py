"""The static files: those of other projects are what the manifest says, and all of them are few bytes."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from omni_jobs.dashboard.static_files import STATIC, static_files, static_version

DASHBOARD = STATIC.parent
MANIFEST = json.loads((DASHBOARD / "vendor.json").read_text())
LARGEST = 400_000  # bytes, of all files
TEMPLATES = sorted((DASHBOARD / "templates").rglob("*.html"))


def test_each_file_of_others_is_in_the_manifest_and_no_other() -> None:
    assert sorted(f"vendor/{row['file']}" for row in MANIFEST) == [
        name for name in static_files() if name.startswith("vendor/")
    ]


@pytest.mark.parametrize("row", MANIFEST, ids=lambda row: row["file"])
def test_a_file_of_others_has_the_digest_version_and_licence_of_the_manifest(row: dict[str, str]) -> None:
    assert hashlib.sha256(static_files()[f"vendor/{row['file']}"]).hexdigest() == row["sha256"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", row["version"])
    assert row["licence"] in ("0BSD", "MIT", "BSD-3-Clause")
    assert "ermission" in (DASHBOARD / "licences" / row["licence_file"]).read_text() or row["licence"] != "MIT"
    assert (DASHBOARD / "licences" / row["licence_file"]).stat().st_size > 200


def test_all_files_together_are_few_bytes() -> None:
    assert sum(map(len, static_files().values())) <= LARGEST


def test_the_version_is_of_names_and_bytes() -> None:
    assert re.fullmatch("[0-9a-f]{16}", static_version())


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.relative_to(DASHBOARD / "templates").as_posix())
def test_no_template_has_inline_script_or_style_or_leaves_the_server(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|hx-on|javascript:|hx-vals=.?js:|\|\s*safe", text) == []
    assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []
    assert re.findall(r"(?:src|href|action|hx-get|hx-post)=\"(?!\{\{|#)[^\"]*\"", text) == []


@pytest.mark.parametrize("name", [name for name in static_files() if name.endswith((".js", ".css"))])
def test_no_script_or_style_of_ours_names_another_origin(name: str) -> None:
    if not name.startswith("vendor/"):
        text = static_files()[name].decode()
        assert (
            re.findall(r"https?://|\beval\b|new Function|innerHTML|insertAdjacentHTML|document\.write|@import", text)
            == []
        )
