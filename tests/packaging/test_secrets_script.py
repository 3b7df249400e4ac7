"""scripts/secrets makes its directory whole or not at all."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the script reads."""
    for name in ("scripts/secrets", "deploy/valkey/users.conf"):
        (tmp_path / "checkout" / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / "checkout" / name)
    return tmp_path / "checkout"


def make(checkout: Path, *arguments: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "scripts" / "secrets", *arguments],
        cwd=checkout,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )


def test_it_makes_the_directory_whole(checkout: Path) -> None:
    done = make(checkout)
    assert done.returncode == 0, done.stderr
    directory = checkout / "secrets"
    files = sorted(each.name for each in directory.iterdir())
    assert done.stdout == f"{directory}: {' '.join(files)}\n"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert all(each.stat().st_size and each.stat().st_mode & 0o777 == 0o444 for each in directory.iterdir())


@pytest.mark.parametrize("fault", ["a file that it reads is missing", "a program fails at the end"])
def test_where_it_fails_midway_nothing_is_left_and_the_next_run_makes_all(
    fault: str, checkout: Path, tmp_path: Path
) -> None:
    users, aside = checkout / "deploy" / "valkey" / "users.conf", tmp_path / "users.conf"
    programs = tmp_path / "programs"
    programs.mkdir()
    if fault.startswith("a file"):
        users.rename(aside)
    else:
        shutil.copy("/bin/false", programs / "chmod")
    done = make(checkout, path=f"{programs}:{os.environ['PATH']}")
    assert done.returncode != 0
    assert sorted(each.name for each in checkout.iterdir()) == ["deploy", "scripts"]
    if aside.exists():
        aside.rename(users)
    assert make(checkout).returncode == 0
    assert (checkout / "secrets" / "valkey_users").stat().st_size > 0


@pytest.mark.parametrize("there", ["an empty directory", "a file", "a link to nothing"])
def test_nothing_is_overwritten(there: str, checkout: Path) -> None:
    place = checkout / "secrets"
    if there == "an empty directory":
        place.mkdir()
    elif there == "a file":
        place.write_text("mine")
    else:
        place.symlink_to("nothing")
    done = make(checkout)
    assert (done.returncode, "secrets must not exist yet" in done.stderr) == (1, True)
    assert sorted(each.name for each in checkout.iterdir()) == ["deploy", "scripts", "secrets"]


def test_a_directory_by_a_relative_name(checkout: Path) -> None:
    (checkout / "host").mkdir()
    done = make(checkout, "host/own")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{checkout / 'host' / 'own'}: ")
    assert [each.name for each in (checkout / "host").iterdir()] == ["own"]
