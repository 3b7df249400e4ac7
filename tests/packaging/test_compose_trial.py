"""``scripts/compose-test``: what needs no container engine. The whole takes minutes, root and Debian's packages."""

import io
import json
import re
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.compose import debian, images, models, remote, trial
from tests.compose.chat_server import ChatServer
from tests.compose.client import SIDE, Outcome, film_of, png, size_of
from tests.compose.deployment import block, container, moment
from workers.encoders.video import encode_video

ROOT = Path(__file__).parents[2]
TARGETS = """\
https://packages.example.com/apt bookworm main
http://mirror.example.com/debian/ bookworm-updates main
http://mirror.example.com/debian-security/ bookworm-security main
http://mirror.example.com/debian/ bookworm contrib
http://mirror.example.com/debian/ bookworm main
"""
INSPECTED: dict[str, Any] = {
    "Name": "/omni-jobs-postgres-1",
    "RestartCount": 2,
    "State": {
        "Status": "running",
        "ExitCode": 0,
        "Pid": 4711,
        "StartedAt": "2026-01-05T09:30:02.123456789Z",
        "FinishedAt": "0001-01-01T00:00:00Z",
        "Health": {"Status": "healthy"},
    },
    "Config": {"Hostname": "1f2e3d", "Labels": {"com.docker.compose.service": "postgres"}},
}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"])


def test_the_mirror_is_that_of_the_hosts_own_release() -> None:
    lines = TARGETS.splitlines()[1:]
    assert debian.chosen("\n".join(lines), "bookworm") == "http://mirror.example.com/debian"
    with pytest.raises(debian.DebianError, match="DEBIAN_MIRROR"):
        debian.chosen("\n".join(lines), "trixie")


@pytest.mark.parametrize(
    ("listed", "index"),
    [
        ("global.index-url='https://a.example/simple'\n:env:.cert='/ca'", "https://a.example/simple"),
        (":env:.index-url='https://b.example/simple'\nglobal.index-url='https://a.example/simple'", "https://b.example/simple"),
        ("global.index-url='file:///srv/simple'", None),
        ("global.extra-index-url='https://a.example/simple'", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_index_of_a_build_is_pips_where_a_container_reaches_it(listed: str, index: str | None) -> None:
    assert images.index_of(listed) == index


def test_there_is_a_stand_in_for_each_third_party_image(services: dict[str, Any]) -> None:
    named = images.third_party()
    assert set(named) == set(images.TARGETS)
    used = {one["image"] for one in services.values() if not one["image"].startswith("omni-jobs-")}
    others = {named.pop(name) for name in ("python", "prometheus", "nginx")}
    assert others == {"python:3.11.14-slim-bookworm", "prom/prometheus:v3.5.0", "nginx:1.28.0-alpine"}
    assert set(named.values()) == used
    targets = re.findall(r"(?m)^FROM omni-jobs-test/\S+ AS (\S+)$", (images.CONTEXT / "Dockerfile").read_text())
    assert targets == list(images.TARGETS)


def test_every_service_that_lasts_is_killed(services: dict[str, Any]) -> None:
    lasting = {
        name
        for name, one in services.items()
        if one["restart"] != "no" and ("profiles" not in one or one["profiles"][0] in trial.PROFILES)
    }
    assert lasting == {*trial.STAGES, *trial.SERVICES}
    for name, (pipeline, stage) in trial.STAGES.items():
        assert services[name]["command"] == ["omni-jobs", "worker", "--pipeline", pipeline, "--stage", stage]


def test_every_pipeline_is_started_by_somebody(services: dict[str, Any]) -> None:
    profiles = {name for one in services.values() for name in one.get("profiles", [])}
    assert {*trial.PROFILES, *models.JOBS} == profiles - {"images"}


def test_the_docs_begin_with_commands_that_the_trial_knows() -> None:
    up, tenant, key = trial.commands_to_start()
    assert up == "docker compose up --detach --wait"
    assert "tenants create" in tenant
    assert "keys create" in key
    stop, dump, copy, again = trial.commands_to_back_up()
    assert stop == f"docker compose stop api rescuer {' '.join(trial.STAGES)}"
    assert (dump.split()[-1], copy.split()[-1]) == ("jobs.dump", "objects.tar")
    assert again.startswith("docker compose up")
    assert block("several-hosts.md")[1:] == ["docker compose up --detach --wait"]
    drain, resume = block("stop.md", "Empty a host")
    assert drain.startswith("omni-jobs workers drain --host gpu-a --wait")
    assert resume == "omni-jobs workers resume --host gpu-a"
    assert len(remote.commands()) == 2
    assert [line.split()[2] for line in block("backup.md", "Restore")] == ["up", "exec", "stop", "run", "up"]


def test_a_container_is_read() -> None:
    found = container(INSPECTED)
    assert (found.name, found.service, found.restarts, found.pid) == ("omni-jobs-postgres-1", "postgres", 2, 4711)
    assert found.up
    assert found.started_at == moment("2026-01-05T09:30:02.123456Z")
    starting = INSPECTED | {"State": INSPECTED["State"] | {"Health": {"Status": "starting"}}}
    assert not container(starting).up
    ended = INSPECTED["State"] | {"Status": "exited", "Health": None}
    short = {"Hostname": "1f2e3d", "Labels": {"com.docker.compose.service": "migrate"}}
    assert container(INSPECTED | {"State": ended, "Config": short}).up
    assert not container(INSPECTED | {"State": ended | {"ExitCode": 1}, "Config": short}).up


def test_the_picture_of_the_trial_is_one() -> None:
    data = png(SIDE, SIDE)
    with Image.open(io.BytesIO(data)) as picture:
        picture.load()
        assert picture.size == size_of(data) == (SIDE, SIDE)
        assert picture.mode == "RGB"


def test_the_size_and_the_frames_of_a_video_are_read() -> None:
    pixels = np.zeros((9, 96, 64, 3), np.uint8)
    assert film_of(encode_video({"pixels": pixels}, {"frame_rate": 16}, "mp4")) == (64, 96, 9)


@pytest.mark.parametrize(
    "bad", [{"lost": 1}, {"doubled": 1}, {"wrong": 1}, {"completed": 2}, {"submitted": 0, "completed": 0}]
)
def test_an_outcome_holds_only_if_all_jobs_completed_once_and_right(bad: dict[str, int]) -> None:
    good: dict[str, Any] = {"submitted": 3, "completed": 3, "repeated": 2, "errors": Counter({"503": 4})}
    assert Outcome(**good).held
    assert not Outcome(**good | bad).held


def test_a_step_that_fails_is_told_and_makes_the_report_fail() -> None:
    said: list[str] = []
    run = trial.Trial(None, None, said.append)  # type: ignore[arg-type]
    with run.step("one") as facts:
        facts["jobs"] = 3
    with run.step("two"):
        raise trial.TrialError("gone")
    with pytest.raises(trial.TrialError), run.step("three", needed=True):
        raise trial.TrialError("needed")
    found = trial.report(run, "Docker 28", {"omni-jobs-api": 716_000_000}, 12.3)
    assert not found["held"]
    assert "FAILED: two, three" in trial.table(found)
    run.fail("between", trial.TrialError("lost"))
    assert run.steps[-1].error == "TrialError: lost"
    said.pop()
    assert [line.split()[0] for line in said if not line.startswith(" ")] == ["held", "FAILED", "FAILED"]


def test_the_server_that_is_there_already_says_what_it_was_asked_to_who_has_its_key() -> None:
    server = ChatServer()
    server.start("127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
    body = json.dumps({"messages": [{"role": "user", "content": "Say hi."}]}).encode()

    def ask(key: str) -> Any:
        request = urllib.request.Request(url, body, {"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]

    try:
        assert ask(server.key) == "Say hi."
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask("another")
        assert server.answers == {200: 1, 401: 1}
    finally:
        server.stop()
    with pytest.raises(urllib.error.URLError):
        ask(server.key)


def test_the_script_says_whether_this_host_can_run_it() -> None:
    done = subprocess.run([ROOT / "scripts" / "compose-test", "--check"], capture_output=True, text=True, timeout=120)
    assert done.returncode in {0, 3}, done.stderr
    assert (done.returncode == 3) == ("this host cannot run it: " in done.stderr)
    assert "Traceback" not in done.stderr
