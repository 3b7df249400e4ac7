"""scripts/audit: what it says of a service's answers, and that without a service nothing counts as audited."""

import importlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

from tests.packaging.test_packaging import pins

ROOT = Path(__file__).parents[2]
KNOWN = {"jinja2": ("GHSA-aaaa-bbbb-cccc", "CVE-2026-0001", "99.0")}


class Osv(BaseHTTPRequestHandler):
    """Answers as OSV does: of jinja2 a vulnerability is known, of all others none."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
        vulns = []
        if asked in KNOWN:
            number, alias, mended = KNOWN[asked]
            fixed = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": mended}]}
            affected = [{"package": {"name": asked, "ecosystem": "PyPI"}, "ranges": [fixed]}]
            vulns = [{"id": number, "aliases": [alias], "summary": "A hole.", "details": "", "affected": affected}]
        body = json.dumps({"vulns": vulns} if vulns else {}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def osv() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Osv) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


def audit(*arguments: str) -> "subprocess.CompletedProcess[str]":
    python = ROOT / ".venv" / "bin" / "python"
    return subprocess.run([python, ROOT / "scripts/audit.py", *arguments], capture_output=True, text=True)


def test_help_has_the_exit_codes() -> None:
    done = audit("--help")
    assert done.returncode == 0
    for code in (0, 1, 2, 3):
        assert f"\n  {code}  " in done.stdout


@pytest.mark.parametrize("arguments", [["--lock", "no_such"], ["--osv-url", "http://127.0.0.1:1/"]])
def test_a_wrong_argument_is_told(arguments: list[str]) -> None:
    done = audit(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: scripts/audit")


def test_without_a_service_nothing_counts_as_audited() -> None:
    with socket.socket() as taken:  # bound, and not listening: who connects is refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/query"
        done = audit("--lock", "core", "--service", "osv", "--osv-url", url, "--json")
    assert done.returncode == 3
    assert "NOTHING WAS AUDITED" in done.stderr
    assert "Connection refused" in done.stderr
    report = json.loads(done.stdout)
    assert (report["vulnerabilities"], report["asked"]) == ([], 0)
    assert report["not_audited"].keys() == pins("core").keys()


def test_known_vulnerabilities_are_listed_with_what_mends_them(osv: str) -> None:
    done = audit("--lock", "core", "--service", "osv", "--osv-url", osv)
    assert (done.returncode, done.stderr) == (1, "")
    version = pins("core")["jinja2"]
    number, alias, mended = KNOWN["jinja2"]
    assert done.stdout.splitlines() == [
        f"jinja2 {version}: {alias} ({number}): mended in {mended}",
        f"known vulnerabilities: 1, in {len(pins('core'))} packages",
    ]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield importlib.import_module("audit")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def test_builds_of_an_index_are_asked_for_by_their_public_version(script: ModuleType, tmp_path: Path) -> None:
    """torch's for CPUs, say: by its own version no service knows it."""
    lock = tmp_path / "lock.txt"
    lock.write_text("# Made.\ntorch==2.13.0+cpu\njinja2==3.1.6\n", encoding="utf-8")
    assert script.public_pins(lock) == {("torch", "2.13.0"), ("jinja2", "3.1.6")}


def test_two_versions_of_a_package_are_both_asked_for(script: ModuleType, osv: str) -> None:
    """Locks may differ in a package."""
    service = ["--vulnerability-service", "osv", "--osv-url", osv]
    report, why = script.ask([("jinja2", "3.0"), ("jinja2", "3.1"), ("torch", "2.13.0")], service)
    found = script.read(report)
    assert (why, found.asked, found.lacking, found.code) == ("", 3, {}, 1)
    assert [(each.package, each.version) for each in found.vulnerabilities] == [("jinja2", "3.0"), ("jinja2", "3.1")]


@pytest.mark.parametrize(
    ("dependencies", "code"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0),
        ([{"name": "a", "skip_reason": "Dependency not found on PyPI"}], 3),
        ([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "Dependency not found on PyPI"}], 3),
        ([], 3),
    ],
)
def test_what_the_service_does_not_know_is_not_audited(
    script: ModuleType, dependencies: list[dict[str, Any]], code: int
) -> None:
    """pip-audit calls that a success."""
    found = script.read({"dependencies": dependencies})
    assert found.code == code
    assert found.lacking.keys() == {each["name"] for each in dependencies if "skip_reason" in each}


def test_what_nobody_asked_for_is_not_told_to_be_well(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """At a mirror of PyPI that answers 404 for each package."""
    found = script.read({"dependencies": [{"name": "a", "skip_reason": "Dependency not found on PyPI"}]})
    script.say(found)
    script.warn(found, "pypi", "")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("scripts/audit: NOTHING WAS AUDITED, no service answers: pypi answers, but knows none")
