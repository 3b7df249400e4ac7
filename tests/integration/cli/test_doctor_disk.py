"""What ``omni-jobs doctor`` says of room on disks and in /dev/shm: real filesystems, mounted for its process alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OWN_MOUNTS = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2"'


@pytest.fixture(autouse=True)
def mounts_are_allowed(tmp_path: Path) -> None:
    trial = [*OWN_MOUNTS, "sh", "-c", MOUNT, "sh", "1m", str(tmp_path)]
    try:
        allowed = subprocess.run(trial, capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("mounting a filesystem is not allowed here")


def disk(directory: Path, sizes: dict[str, str], **settings: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the doctor where filesystems of these sizes are at these places; return its exit code and findings."""
    in_order = sorted(sizes.items(), key=lambda each: each[0] != "/dev/shm")  # which may hide the other places
    mounts = "".join(
        f'mkdir -p -m 700 "{place}" && mount -t tmpfs -o size={size} tmpfs "{place}" && ' for place, size in in_order
    )
    command = [*OWN_MOUNTS, "sh", "-c", f'{mounts}exec "$@"', "sh", sys.executable, "-m", "omni_jobs.cli", "doctor"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
    environment = kept | {"OMNI_JOBS_DATA_DIR": str(directory / "data"), "TMPDIR": str(directory / "tmp")} | settings
    done = subprocess.run(
        [*command, "--only", "disk", "--json"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout, done.stderr
    return done.returncode, {each["figures"]["directory"]: each for each in json.loads(done.stdout)}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Those that the doctor looks at, by their names here."""
    found = {"data": str(tmp_path / "data"), "tmp": str(tmp_path / "tmp"), "shm": "/dev/shm"}
    for place in (found["data"], found["tmp"]):
        Path(place).mkdir(mode=0o700)
    return found


ENOUGH = {"data": "6g", "tmp": "6g", "shm": "2g"}  # of memory that nothing takes


@pytest.mark.parametrize(
    ("small", "size", "wanted"),
    [("shm", "64m", "1.1 GB"), ("data", "64m", "5.4 GB"), ("tmp", "1g", "5.4 GB")],
)
def test_too_little_room_is_a_warning(
    small: str, size: str, wanted: str, places: dict[str, str], tmp_path: Path
) -> None:
    code, found = disk(tmp_path, {places[name]: (ENOUGH | {small: size})[name] for name in places})
    states = {name: found[place]["state"] for name, place in places.items()}
    assert states == {name: "warning" if name == small else "ok" for name in places}
    told = found[places[small]]
    free = told["figures"]["free_bytes"]
    assert told["message"] == f"{places[small]} has {free / 1e9:,.1f} GB free"
    assert free <= int(size[:-1]) << {"m": 20, "g": 30}[size[-1]]
    assert told["remedy"] == f"have {wanted} free there: docs/operations/disk.md"
    assert code == 0, "it is a warning"


def test_the_reserve_of_the_settings_counts_for_the_data_directory(places: dict[str, str], tmp_path: Path) -> None:
    sizes = {places[name]: size for name, size in ENOUGH.items()}
    _, found = disk(tmp_path, sizes, OMNI_JOBS_MIN_FREE_BYTES="8000000000")
    assert found[places["data"]]["state"] == "warning"
    assert found[places["data"]]["remedy"].startswith("have 8.0 GB free")
    assert found[places["tmp"]]["state"] == "ok"
