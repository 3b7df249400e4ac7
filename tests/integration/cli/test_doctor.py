"""``omni-jobs doctor`` before real services: what is well, what is not, and what to do."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from omni_jobs.database.database import Database
from omni_jobs.doctor import Finding, examine, services
from omni_jobs.settings import Settings
from tests.integration.api_server import server_settings
from tests.services.postgres import by_owner

PASSWORD = "not-to-be-shown"


def doctor(environment: dict[str, str], *arguments: str, hard_limit: int = 20_000) -> tuple[int, list[dict[str, Any]]]:
    """Run the command with these variables and this limit on open files; return its exit code and findings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
    limited = ["bash", "-c", f'ulimit -Sn {min(hard_limit, 256)}; ulimit -Hn {hard_limit}; exec "$@"', "bash"]
    command = [*limited, sys.executable, "-m", "omni_jobs.cli", "doctor", "--json", *arguments]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout)


def of(about: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in found if each["about"] == about]


def environment_of(settings: Settings) -> dict[str, str]:
    return {
        "OMNI_JOBS_DATA_DIR": str(settings.data_dir),
        "OMNI_JOBS_DATABASE_URL": settings.resolved_database_url,
        "OMNI_JOBS_BROKER_URL": settings.broker_url.get_secret_value(),
        "OMNI_JOBS_PIPELINES": "echo",
    }


def test_all_is_well(settings: Settings) -> None:
    code, found = doctor(environment_of(settings))
    assert [each for each in found if each["state"] == "error"] == []
    assert code == 0
    abouts = [each["about"] for each in found]
    assert abouts[:5] == ["settings", "database", "versions", "broker", "storage"]
    assert abouts[-1] == "echo"
    [database] = of("database", found)
    assert abs(database["figures"]["clock_ahead_s"]) < 2
    [own] = of("settings", found)
    assert "echo" in own["figures"]["pipelines"]


def test_nothing_is_there(tmp_path: Path) -> None:
    environment = {
        "OMNI_JOBS_DATA_DIR": str(tmp_path),
        "OMNI_JOBS_DATABASE_URL": f"postgresql://omni:{PASSWORD}@127.0.0.1:9/none",
        "OMNI_JOBS_BROKER_URL": f"redis://:{PASSWORD}@127.0.0.1:9/0",
        "OMNI_JOBS_STORAGE_URL": "file:///proc/none",
        "OMNI_JOBS_PIPELINES": "chat",
        "OMNI_JOBS_BROKR_URL": "x",
    }
    code, found = doctor(environment, hard_limit=1024)
    assert code == 1
    for about in ("database", "broker", "storage", "chat"):
        [error] = of(about, found)
        assert (error["state"], bool(error["remedy"])) == ("error", True), about
    [_, unread] = of("settings", found)
    assert "is OMNI_JOBS_BROKER_URL meant?" in unread["message"]
    [files] = of("files", found)
    assert (files["state"], files["figures"]) == ("warning", {"most": 1024})


def test_settings_that_no_process_starts_with(tmp_path: Path) -> None:
    (empty := tmp_path / "url").touch()
    for variables in ({"OMNI_JOBS_LEASE_S": "soon"}, {"OMNI_JOBS_DATABASE_URL_FILE": str(empty)}):
        code, [found] = doctor({"OMNI_JOBS_DATA_DIR": str(tmp_path), **variables})
        assert (code, found["about"], found["state"], bool(found["remedy"])) == (1, "settings", "error", True)
        assert next(iter(variables)) in found["message"]


def test_what_it_makes_in_a_new_data_directory_is_private(tmp_path: Path) -> None:
    """Otherwise migrate, which comes next, refuses the directory."""
    new = tmp_path / "new"
    doctor({"OMNI_JOBS_DATA_DIR": str(new)}, "--only", "storage", "--only", "database")
    assert new.stat().st_mode & 0o077 == 0


def test_a_data_directory_that_processes_refuse(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    for is_refused in (False, True):
        code, found = doctor({"OMNI_JOBS_DATA_DIR": str(data)}, "--only", "disk")
        assert (code, found[0]["state"] == "error") == (int(is_refused), is_refused)
        (data / "something").touch()


def test_no_room_is_no_question_of_the_url(tmp_path: Path) -> None:
    full = {"OMNI_JOBS_DATA_DIR": str(tmp_path), "OMNI_JOBS_MIN_FREE_BYTES": str(1 << 60)}
    _, [found] = doctor(full, "--only", "storage")
    assert found["remedy"].startswith("free the disk")


def test_one_examination_alone(tmp_path: Path) -> None:
    code, found = doctor({"OMNI_JOBS_DATA_DIR": str(tmp_path)}, "--only", "storage")
    assert (code, [each["about"] for each in found]) == (0, ["storage"])


def test_a_schema_that_is_not_made(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.sqlite").close()
    environment = {
        "OMNI_JOBS_DATA_DIR": str(tmp_path),
        "OMNI_JOBS_DATABASE_URL": f"sqlite:///{tmp_path / 'empty.sqlite'}",
    }
    code, [found] = doctor(environment, "--only", "database")
    assert code == 1
    assert "run omni-jobs migrate" in found["message"]


def findings(settings: Settings, name: str) -> list[Finding]:
    return list(examine(settings, [name]))


def test_clocks_that_are_apart(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    hour = 3600.0
    is_on_this_host = settings.resolved_database_url.startswith("sqlite")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - hour)
    [_, apart, _] = findings(settings, "database")
    assert apart.state == "warning"
    assert apart.message == "its clock is 3600.0 s ahead of this host's"
    assert is_on_this_host or apart.figures["clock_ahead_s"] == pytest.approx(hour, abs=1)


def test_a_schema_of_a_newer_build(settings: Settings) -> None:
    with closing(Database(settings.resolved_database_url)) as database:
        by_owner(database, "UPDATE alembic_version SET version_num = '9999'")
        [found, *_] = findings(settings, "database")
        assert (found.state, "a newer build's schema, on which this one works" in found.message) == ("ok", True)
        by_owner(database, "UPDATE oldest_builds SET revision = '9998', release = '7.0.0'")
    [found] = findings(settings, "database")
    assert (found.state, "start one of omni-jobs 7.0.0 or newer" in found.message) == ("error", True)


def test_workers_of_another_version(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "version", lambda name: "0.0.1")
    theirs = services._versions({"a@host": "0.0.2", "b@host": None, "c@host": "0.0.1"})
    assert (theirs.state, theirs.message) == ("warning", "this host has omni-jobs 0.0.1, and a@host has 0.0.2")


def test_a_broker_that_forgets(tmp_path: Path, valkey_server: str) -> None:
    settings = server_settings(tmp_path, valkey_server)
    with Redis.from_url(valkey_server) as redis:
        before = redis.config_get("maxmemory-policy")["maxmemory-policy"]
        redis.config_set("maxmemory-policy", "allkeys-lru")
        try:
            [well, forgets] = findings(settings, "broker")
        finally:
            redis.config_set("maxmemory-policy", before)
    assert (well.state, forgets.state) == ("ok", "warning")
    assert "allkeys-lru" in forgets.message


SMI = """#!/bin/sh
echo "0, NVIDIA Tiny, {driver}, {total}, 10"
"""


@pytest.mark.parametrize(
    ("driver", "total", "expected"), [("580.65.06", 24_000, "ok"), ("535.1", 24_000, "error"), ("580.1", 1, "ok")]
)
def test_cards(
    tmp_path: Path, tiny_causal_lm: Path, monkeypatch: pytest.MonkeyPatch, driver: str, total: int, expected: str
) -> None:
    """By a program that answers as the driver's does, because there is no card here."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.format(driver=driver, total=total))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    settings = Settings(data_dir=tmp_path, pipelines=("chat",), models={"chat": tiny_causal_lm})
    [card] = findings(settings, "cards")
    assert (card.state, card.figures["total_bytes"]) == (expected, total << 20)
    [pipeline] = findings(settings, "pipelines")
    assert (pipeline.state, "no room for llm" in pipeline.message) == (
        ("warning", True) if total == 1 else ("ok", False)
    )
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    [broken] = findings(settings, "cards")
    assert (broken.state, "version mismatch" in broken.message) == ("error", True)
    [pipeline] = findings(settings, "pipelines")
    assert (pipeline.about, pipeline.state) == ("chat", "ok")


def with_card(directory: Path, monkeypatch: pytest.MonkeyPatch, mebibytes: int) -> None:
    """This host has one card of so many MiB, says a program that answers as the driver's does."""
    program = directory / "nvidia-smi"
    program.write_text(SMI.format(driver="580.65.06", total=mebibytes))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def two_chats(directory: Path, share: float) -> Path:
    """A directory of two stage configs, each with one stage that takes some 2.5 GB and this share of a card."""
    configs = directory / "configs"
    configs.mkdir()
    content = (Path(__file__).parents[3] / "stage_configs" / "chat.yaml").read_text()
    content = content.replace("gpu_memory_utilization: 0.9", f"gpu_memory_utilization: {share}")
    for name in ("chat", "talk"):
        (configs / f"{name}.yaml").write_text(content.replace("name: chat\n", f"name: {name}\n"))
    return configs


@pytest.mark.parametrize(("gigabytes", "is_enough"), [(4, False), (6, True)])
def test_two_pipelines_that_have_room_on_the_card_alone_and_not_together(
    gigabytes: int, is_enough: bool, tmp_path: Path, tiny_causal_lm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_card(tmp_path, monkeypatch, gigabytes * 10**9 >> 20)
    models = {"chat": tiny_causal_lm, "talk": tiny_causal_lm}
    settings = Settings(data_dir=tmp_path, stage_configs=two_chats(tmp_path, 0.9), models=models)
    *alone, last = findings(settings, "pipelines") + ([None] if is_enough else [])
    assert [(each.about, each.state) for each in alone if each] == [("chat", "ok"), ("talk", "ok")]
    if last is not None:
        assert (last.about, last.state) == ("pipelines", "warning")
        assert "each of chat, talk has room on the cards here, and all together have not" in last.message
        assert "none is left for talk.llm" in last.message
        assert "omni-jobs pipelines fit chat talk" in (last.remedy or "")
    with_card(tmp_path, monkeypatch, 1000)
    assert [each.about for each in findings(settings, "pipelines")] == ["chat", "talk"], "neither has room alone"


def test_too_small_a_share_of_a_stage_config_is_told(
    tmp_path: Path, tiny_causal_lm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_card(tmp_path, monkeypatch, 24_000)
    models = {"chat": tiny_causal_lm, "talk": tiny_causal_lm}
    settings = Settings(data_dir=tmp_path, stage_configs=two_chats(tmp_path, 0.05), models=models)
    chat, talk = findings(settings, "pipelines")
    assert (chat.state, talk.state) == ("warning", "warning")
    assert chat.message == "the stage config gives llm 0.05 of a card, and it takes 0.10"
    assert "OMNI_JOBS_GPU_MEMORY_UTILIZATION" in (chat.remedy or "")
    own = settings.model_copy(update={"gpu_memory_utilization": 0.2})
    assert [each.state for each in findings(own, "pipelines")] == ["ok", "ok"], "this worker has a share of its own"


def test_a_checkpoint_with_a_link_that_dangles(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "model.safetensors").symlink_to(tmp_path / "gone")
    [found] = findings(
        Settings(data_dir=tmp_path, pipelines=("chat",), models={"chat": tmp_path / "tiny"}), "pipelines"
    )
    assert (found.about, found.state) == ("chat", "error")


def test_a_card_that_is_wanted_and_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    [found] = findings(Settings(data_dir=tmp_path, device="cuda"), "cards")
    assert (found.state, bool(found.remedy)) == ("error", True)


def test_it_changes_nothing(settings: Settings) -> None:
    """A database that is not there stays so."""
    missing = settings.data_dir / "none.sqlite"
    [found] = findings(settings.model_copy(update={"database_url": f"sqlite:///{missing}"}), "database")
    assert found.state == "error"
    assert not missing.exists()
