"""Root file systems from Debian's packages, by the mirror that the host's apt is set up for."""

import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR_VARIABLE = "DEBIAN_MIRROR"


class DebianError(Exception):
    """Why no root file system can be made."""


def chosen(targets: str, release: str) -> str:
    """Return the URI of the mirror of ``release``'s component main, of apt's list of `URI RELEASE COMPONENT` lines.

    Those of updates and of security have other releases; the mirror has the other releases of Debian as well. Raises
    DebianError.
    """
    for line in targets.splitlines():
        uri, _, rest = line.partition(" ")
        if rest == f"{release} main":
            return uri.rstrip("/")
    raise DebianError(f"apt knows no mirror of Debian's {release} main; name one by {MIRROR_VARIABLE}")


def mirror() -> str:
    """Return the URI of the host's mirror of Debian. Raises DebianError on a host that is not Debian."""
    if given := os.environ.get(MIRROR_VARIABLE):
        return given.rstrip("/")
    named = dict(re.findall(r'(?m)^(\w+)="?([^"\n]*)"?$', Path("/etc/os-release").read_text(encoding="utf-8")))
    if named.get("ID") != "debian" or shutil.which("apt-get") is None:
        raise DebianError(f"the host is not Debian; name a mirror of Debian by {MIRROR_VARIABLE}, or start Docker")
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    targets = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return chosen(targets, named["VERSION_CODENAME"])


def reachable(uri: str) -> bool:
    """Whether the mirror has the release that the engine is made of."""
    try:
        with urllib.request.urlopen(f"{uri}/dists/forky/InRelease", timeout=20) as answer:
            return bool(answer.read(1))
    except OSError:
        return False


def _debootstrap(tools: Path) -> Path:
    """Return a debootstrap that knows forky, unpacked below ``tools``: that of bookworm does not."""
    program = tools / "usr" / "sbin" / "debootstrap"
    if program.exists():
        return program
    lists, cache = tools / "lists", tools / "cache"
    for directory in (lists / "partial", cache / "archives" / "partial"):
        directory.mkdir(parents=True, exist_ok=True)
    sources = tools / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {mirror()} forky main\n", encoding="utf-8")
    settings = {
        "Dir::State::lists": lists, "Dir::Cache": cache, "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "-",
        "APT::Sandbox::User": "root", "Acquire::Check-Valid-Until": "false",
    }  # fmt: skip
    options = [f"--option={name}={value}" for name, value in settings.items()]
    for words in (["update"], ["download", "debootstrap"]):
        _run(["apt-get", "--quiet", *options, *words], tools)
    (package,) = tools.glob("debootstrap_*.deb")
    _run(["dpkg-deb", "--extract", str(package), str(tools)], tools)
    return program


def bootstrap(release: str, root: Path, packages: Sequence[str], tools: Path) -> None:
    """Make a root file system of a release's least packages and ``packages``, unless it is there whole."""
    if root.exists():
        return
    tools.mkdir(parents=True, exist_ok=True)
    program = _debootstrap(tools)
    half = root.with_name(f"{root.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    include = f"--include={','.join(packages)}"
    # In namespaces of its own, so that no mount and no process of it is left, whatever ends it.
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    command = [
        *alone,
        "sh",
        str(program),
        "--variant=minbase",
        f"--keyring={KEYRING}",
        include,
        release,
        str(half),
        mirror(),
    ]
    _run(command, tools, DEBOOTSTRAP_DIR=str(tools / "usr" / "share" / "debootstrap"))
    for path in (half / "var/cache/apt/archives").glob("*.deb"):
        path.unlink()
    half.rename(root)


def archive(release: str, tar: Path, packages: Sequence[str], tools: Path) -> None:
    """Make a tar of such a root file system, unless it is there."""
    if tar.exists():
        return
    root = tar.with_suffix("")
    bootstrap(release, root, packages, tools)
    half = tar.with_name(f"{tar.name}.half")
    _run(["tar", f"--directory={root}", "--numeric-owner", "--create", f"--file={half}", "."], tools)
    half.rename(tar)
    shutil.rmtree(root)


def _run(words: list[str], directory: Path, **variables: str) -> None:
    done = subprocess.run(
        words, cwd=directory, env=os.environ | {"LC_ALL": "C.UTF-8"} | variables, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = "\n".join(done.stdout.splitlines()[-20:])
        raise DebianError(f"`{' '.join(words[:3])} …` ended with {done.returncode}:\n{said}")
