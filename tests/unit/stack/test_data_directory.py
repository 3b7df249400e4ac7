import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from omni_jobs.errors import StackError
from omni_jobs.stack.data_directory import DataDirectory, running_stack


def test_one_stack_at_a_time(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "data")
    first.open()
    with pytest.raises(StackError, match=rf"another stack runs in .*data \(process {os.getpid()}\)"):
        DataDirectory(tmp_path / "data").open()
    first.close()
    second = DataDirectory(tmp_path / "data")
    second.open()
    second.close()


def test_a_client_finds_the_running_stack(tmp_path: Path) -> None:
    assert running_stack(tmp_path / "data") is None
    directory = DataDirectory(tmp_path / "data")
    directory.open()
    assert running_stack(directory.path) is None  # it does not serve yet
    directory.write_url("http://127.0.0.1:1234")
    assert running_stack(directory.path) == "http://127.0.0.1:1234"
    assert stat.S_IMODE((directory.path / "stack.url").stat().st_mode) == 0o600
    directory.close()
    assert running_stack(directory.path) is None


def test_what_a_killed_stack_said_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "stack.lock").touch()
    (tmp_path / "stack.url").write_text("http://127.0.0.1:1234", encoding="utf-8")
    assert running_stack(tmp_path) is None


def test_the_log_of_the_start_before_is_kept(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.open()
    directory.new_log("api").write_text("one", encoding="utf-8")
    directory.new_log("api").write_text("two", encoding="utf-8")
    assert (directory.logs / "api.log").read_text(encoding="utf-8") == "two"
    assert (directory.logs / "api.log.1").read_text(encoding="utf-8") == "one"
    directory.close()


def test_a_temporary_directory_goes(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    directory.open()
    directory.close(remove=True)
    assert not directory.path.exists()


def test_a_file_in_its_place_is_an_error_for_people(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("", encoding="utf-8")
    with pytest.raises(StackError, match="the data directory cannot be used"):
        DataDirectory(tmp_path / "data").open()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o710])
def test_an_empty_directory_that_is_open_to_others_is_closed(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(mode)
    directory = DataDirectory(path)
    directory.open()
    assert mode_of(path) == 0o700
    directory.close()
    path.chmod(mode)  # with a stack's files in it
    directory.open()
    assert mode_of(path) == 0o700
    directory.close()


def test_a_directory_of_other_things_is_not_closed_but_refused(tmp_path: Path) -> None:
    path = tmp_path / "home"
    path.mkdir()
    path.chmod(0o755)
    (path / "letter").touch()
    with pytest.raises(StackError, match=r"open to other users \(mode 755\) and holds other things.*chmod 700"):
        DataDirectory(path).open()
    assert mode_of(path) == 0o755
    assert [entry.name for entry in path.iterdir()] == ["letter"]
    path.chmod(0o700)
    directory = DataDirectory(path)
    directory.open()
    directory.close()


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StackError, match="belongs to another user"):
        DataDirectory(tmp_path).open()


def test_a_directory_that_stays_open_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems take a mode and keep another."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
    with pytest.raises(StackError, match="file system keeps it so"):
        DataDirectory(tmp_path).open()


def test_a_process_beside_the_stack_closes_it_as_well(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(0o755)
    environment = {**os.environ, "OMNI_JOBS_DATA_DIR": str(directory)}
    for name in ("OMNI_JOBS_DATABASE_URL", "OMNI_JOBS_STORAGE_URL"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "omni_jobs.cli", "migrate"]
    subprocess.run(command, env=environment, check=True, capture_output=True, umask=0o022)
    assert mode_of(directory) == 0o700
    assert mode_of(directory / "omni-jobs.sqlite") == 0o600
    directory.chmod(0o755)  # with nothing of a stack's but the database
    subprocess.run(command, env=environment, check=True, capture_output=True, umask=0o022)
    assert mode_of(directory) == 0o700
    other = tmp_path / "home"
    other.mkdir()
    other.chmod(0o755)
    (other / "letter").touch()
    environment["OMNI_JOBS_DATA_DIR"] = str(other)
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "open to other users" in done.stderr
    assert [entry.name for entry in other.iterdir()] == ["letter"]
