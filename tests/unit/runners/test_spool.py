"""The spool: what is written is read, and nothing stays behind."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ConfigError, PayloadError, StorageFull, StorageUnavailable
from workers.runners.spool import Spool, SpoolFiles


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path)
    yield spool
    spool.close()


def test_tensors_lists_dicts_and_values_come_back(spool: Spool) -> None:
    given: dict[str, Any] = {
        "rows": torch.randn(5, 3, dtype=torch.bfloat16),
        "part": torch.arange(12).reshape(4, 3)[1:3],
        "list": [torch.zeros(2), torch.ones(0)],
        "dict": {"a": torch.tensor([True])},
        "values": torch.zeros(1),
    }
    spool.write("k", given, {"values": [1, {"x": None}], "a name.": -3})
    found, values = SpoolFiles(spool.directory).read("k")
    assert SpoolFiles(spool.directory).take("k")[1] == values
    # It is gone, and the map stays.
    assert torch.equal(found["rows"], given["rows"])
    assert torch.equal(found["part"], given["part"])
    assert [len(tensor) for tensor in found["list"]] == [2, 0]
    assert found["dict"]["a"].tolist() == [True]
    assert found["values"].tolist() == [0]
    assert values == {"values": [1, {"x": None}], "a name.": -3}
    with pytest.raises(StorageUnavailable):
        spool.read("k")
    spool.remove("k")


def test_room_is_kept_free(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the filesystem where that is less than the setting: nothing is refused for a small /dev/shm alone."""
    careful = SpoolFiles(spool.directory, min_free_bytes=100 << 20)
    blocks = {"free": 1000}

    def statvfs(path: object) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, 1000, blocks["free"], blocks["free"], 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    careful.write("k", {}, {"n": 1})
    blocks["free"] = 100
    with pytest.raises(StorageFull):
        careful.write("l", {}, {"n": 1})
    spool.write("l", {}, {"n": 1})  # without a limit


@pytest.mark.parametrize("name", ["../k", "", ".lock", "a/b"])
def test_names_lead_nowhere_else(spool: Spool, name: str) -> None:
    with pytest.raises(PayloadError):
        spool.read(name)


def test_close_removes_all_and_twice_is_harmless(spool: Spool) -> None:
    spool.write("k", {"x": torch.zeros(3)}, {})
    spool.close()
    spool.close()
    assert not spool.directory.exists()


def test_a_killed_owners_directory_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    living = Spool(tmp_path)
    script = "import os, sys; from pathlib import Path; from workers.runners.spool import Spool;"
    script += "s = Spool(Path(sys.argv[1]));"
    script += "s.write('k', {}, {'n': 1}); print(s.directory); sys.stdout.flush(); os._exit(9)"
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    left = Path(killed.stdout.strip())
    assert (left / "k").exists()
    later = Spool(tmp_path)
    assert not left.exists()
    assert living.directory.exists()
    later.close()
    living.close()


def test_what_is_no_spools_stays(tmp_path: Path) -> None:
    """An operator may name a base that holds other directories, or links to them."""
    (tmp_path / "checkpoints" / "a").mkdir(parents=True)
    kept = {tmp_path / "checkpoints", tmp_path / "omni-jobs-spool-link", tmp_path / "file"}
    (tmp_path / "omni-jobs-spool-link").symlink_to(tmp_path / "checkpoints")
    (tmp_path / "file").write_text("")
    Spool(tmp_path).close()
    assert {path for path in tmp_path.iterdir() if not path.name.startswith(".")} == kept
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["a"]


def test_a_base_that_cannot_be_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no spool"):
        Spool(tmp_path / "file" / "below")
