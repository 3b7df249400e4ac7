"""scripts/sbom: a valid SBOM that has each package of its lock."""

import json
import subprocess
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.packaging.test_packaging import pins

ROOT = Path(__file__).parents[2]
LOCKS = sorted(path.stem for path in (ROOT / "locks").glob("*.txt"))


def printed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [ROOT / ".venv" / "bin" / "python", ROOT / "scripts" / "sbom.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("lock", LOCKS)
def test_each_package_of_the_lock_is_in_it(lock: str) -> None:
    done = printed(lock)
    assert done.returncode == 0, done.stderr
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(done.stdout) is None
    found = json.loads(done.stdout)
    assert {each["name"]: each["version"] for each in found["components"]} == {
        name: version.removesuffix(" \\") for name, version in pins(lock).items()
    }
    if lock in {"core", "worker-cpu", "worker-cuda"}:
        assert all(each["hashes"] for each in found["components"])
    assert found["metadata"]["component"]["name"] == "omni-jobs"


def test_another_lock_is_no_lock() -> None:
    done = printed("none")
    assert done.returncode == 2
    assert "worker-cuda" in done.stderr
