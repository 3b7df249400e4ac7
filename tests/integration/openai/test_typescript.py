"""demo/typescript: its README's commands install the client of npm, which streams a text and saves a picture."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from tests.docs.pages import ROOT
from tests.integration.api_server import ApiServer

DEMO = ROOT / "demo" / "typescript"
AWAY = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH")
OURS = {"node_modules", "build", "lighthouse"}  # what its commands leave in a clone
INSTALL_S, RUN_S = 120, 120

pytestmark = [pytest.mark.long, pytest.mark.timeout(INSTALL_S + RUN_S + 60)]


def commands() -> tuple[str, str]:
    blocks = re.findall(r"```bash\n(.*?)```", (DEMO / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    _, block = blocks
    install, start = block.splitlines()
    return install, start


def run(command: str, directory: Path, within_s: float, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        shell=True,
        cwd=directory,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the demo whose packages are installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no Node.js")
    major = re.match(r"v(\d+)\.", subprocess.run(["node", "--version"], capture_output=True, text=True).stdout)
    if major is None or int(major[1]) < 20:
        pytest.skip("Node.js is older than 20")
    directory = tmp_path / "typescript"
    shutil.copytree(DEMO, directory, ignore=lambda _, names: OURS.intersection(names))
    options = {
        "npm_config_prefer_offline": "true",
        "npm_config_fetch_retries": "1",
        "npm_config_fetch_timeout": "30000",
    }
    try:
        done = run(commands()[0], directory, INSTALL_S, **options)
    except subprocess.TimeoutExpired:
        pytest.skip("npm's registry does not answer in time")
    if done.returncode and AWAY.search(done.stderr):
        pytest.skip("npm's registry is out of reach")
    assert done.returncode == 0, done.stderr[-2000:]
    return directory


def test_the_client_of_npm_streams_and_saves(installed: Path, echo_media: ApiServer) -> None:
    url = f"http://{echo_media.host}:{echo_media.port}"
    done = run(f"{commands()[1]} -- {url} saved", installed, RUN_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "A lighthouse stands by the sea, and its lamp turns.\n" in done.stdout
    previews = sorted((installed / "saved").glob("partial-*.jpeg"))
    assert 1 <= len(previews) <= 2
    for file, kind in [(installed / "saved" / "lighthouse.png", "PNG"), *((each, "JPEG") for each in previews)]:
        with Image.open(file) as picture:
            picture.load()
            assert picture.format == kind
    with Image.open(installed / "saved" / "lighthouse.png") as picture:
        assert picture.size == (1024, 1024)


def test_a_refusal_is_told(installed: Path, tmp_path: Path, echo_media: ApiServer) -> None:
    script = installed / "lighthouse.ts"
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace("1024x1024", "10x10"), encoding="utf-8")
    done = run(f"{commands()[1]} -- http://{echo_media.host}:{echo_media.port} saved", installed, RUN_S)
    assert done.returncode == 1
    assert "400 invalid_request" in done.stderr
