"""The embedded stack, whole: Valkey, API, rescuer and the echo pipeline's workers as child processes."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import pytest

from omni_jobs.client import Client
from omni_jobs.database.database import Database
from omni_jobs.errors import IdempotencyKeyReused, InvalidRequest, NotFound, PluginBroken, StackError, StorageFull
from omni_jobs.jobs import Jobs
from omni_jobs.settings import Settings
from omni_jobs.stack.child import Child, ChildState, ChildView
from omni_jobs.stack.data_directory import running_stack
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from tests.integration.stack.stack_steps import OMNI_JOBS, children_of, echo, until
from tests.services.fault_proxy import Fault, FaultProxy
from tests.services.seaweedfs import SeaweedFS

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[3]
START_S = 240.0  # two cores may be busy with other tests
NOTICES: list[str] = []  # of the fixture ``stack``


def test_a_fork_pays_for_its_own_stages_alone(client: Client) -> None:
    """The payload lies in the object store; the job that is forked is deleted while its fork has not begun."""
    size = 300_000
    body = {**echo("Hello", payload_bytes=size), "keep_payloads": True, "seed": 7}
    job = client.wait(client.submit(body).id, timeout=60)
    assert job.status is JobState.COMPLETED
    assert (job.stages[0].payload_bytes or 0) >= size
    client.set_paused("echo", "second", True)
    try:
        changes = {"stages": {"second": {"delay_s": 0.2}}, "seed": 8}
        command = [*OMNI_JOBS, "fork", job.id, "--from", "second", "--set", "second.delay_s=0.2", "--seed", "9"]
        printed = subprocess.run(
            [*command, "--url", client.base_url], capture_output=True, text=True, check=True
        ).stdout.strip()
        forks = [client.fork(job.id, "second", changes), client.get(printed)]
        client.delete(job.id)
    finally:
        client.set_paused("echo", "second", False)
    for fork, seed in zip(forks, (8, 9), strict=True):
        ended = client.wait(fork.id, timeout=60)
        assert (ended.status, ended.seed, ended.forked_from) == (JobState.COMPLETED, seed, job.id), ended.error
        assert [(stage.status, stage.attempt) for stage in ended.stages] == [("succeeded", 0), ("succeeded", 1)]
        assert ended.result == job.result
        second = ended.stages[1]
        assert second.started_at is not None
        assert second.finished_at is not None
        assert (second.finished_at - second.started_at).total_seconds() >= 0.19


def child(stack: EmbeddedStack, name: str) -> ChildView:
    return next(view for view in stack.children() if view.name == name)


def pid_of(stack: EmbeddedStack, name: str) -> int:
    pid = child(stack, name).pid
    assert pid is not None
    return pid


PLANTED = "planted-secret"
SECRETS = {
    "OMNI_JOBS_SERVERS": json.dumps({"local": {"url": "http://127.0.0.1:9/v1", "key": f"{PLANTED}-server"}}),
    "OMNI_JOBS_API_KEY": f"{PLANTED}-api-key",
    "AWS_SECRET_ACCESS_KEY": f"{PLANTED}-aws",
    "PGPASSWORD": f"{PLANTED}-postgresql",
    "OPENAI_API_KEY": f"{PLANTED}-model",
    "DATABASE_URL": f"postgresql://me:{PLANTED}-url@127.0.0.1/db",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        settings = Settings(data_dir=tmp_path_factory.mktemp("stack") / "data", load_limit_s=START_S)
        stack = EmbeddedStack(settings, pipelines=["echo"], on_notice=NOTICES.append)
        stack.start()
    try:
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def client(stack: EmbeddedStack) -> Iterator[Client]:
    with Client(stack.url) as client:
        yield client


def test_every_part_is_ready(stack: EmbeddedStack) -> None:
    views = stack.children()
    assert [view.name for view in views] == ["valkey", "api", "rescuer", "worker echo.first", "worker echo.second"]
    assert all(view.state is ChildState.READY and view.log.is_file() for view in views)
    assert running_stack(stack.settings.data_dir) == stack.url


def test_what_runs_is_what_is_served(client: Client) -> None:
    assert [pipeline.name for pipeline in client.pipelines()] == ["echo"]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_no_part_but_the_api_takes_a_core_from_a_model_by_waking_up(stack: EmbeddedStack) -> None:
    pids = {view.name: view.pid for view in stack.children() if view.pid is not None}
    api = pids.pop("api")
    assert len(pids) > 3
    assert {policy for pid in pids.values() for policy in _policies(pid)} == {os.SCHED_BATCH}
    assert _policies(api) == {os.SCHED_OTHER}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def _policies(pid: int) -> set[int]:
    return {os.sched_getscheduler(int(thread.name)) for thread in Path(f"/proc/{pid}/task").iterdir()}


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_no_process_has_a_secret_that_it_does_not_use(stack: EmbeddedStack) -> None:
    """Valkey and workers write their titles over their variables, as far as they do."""
    pids = {view.name: view.pid for view in stack.children() if view.pid is not None and "worker" not in view.name}
    pids["sentinel"] = next(
        pid for pid in children_of(os.getpid()) if b"sentinel.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    found = {name: Path(f"/proc/{pid}/environ").read_bytes() for name, pid in pids.items()}
    assert found.keys() == {"valkey", "api", "rescuer", "sentinel"}
    assert [name for name, variables in found.items() if PLANTED.encode() in variables] == []
    assert b"OMNI_JOBS_DATA_DIR=" in found["api"]
    assert b"PATH=" in found["sentinel"]
    assert b"OMNI_JOBS_" not in found["sentinel"] + found["valkey"]


def test_a_job_goes_through_both_stages(client: Client) -> None:
    text = "Hello, 你好, مرحبا, 😀"
    job = client.wait(client.submit(echo(text, payload_bytes=100_000)).id, timeout=60)
    assert job.status is JobState.COMPLETED
    assert job.result is not None
    assert job.result["text"] == text
    assert [stage.name for stage in job.stages] == ["first", "second"]
    assert (job.stages[0].payload_bytes or 0) >= 100_000
    assert client.list(limit=1).jobs[0].id == job.id


def test_the_idempotency_key_makes_one_job(client: Client) -> None:
    first = client.submit(echo("once"), idempotency_key="stack-test")
    assert client.submit(echo("once"), idempotency_key="stack-test").id == first.id
    with pytest.raises(IdempotencyKeyReused):
        client.submit(echo("twice"), idempotency_key="stack-test")


def test_a_running_job_is_cancelled(client: Client) -> None:
    job = client.submit(echo("never", delay_s=50))
    until(lambda: client.get(job.id).status is JobState.IN_PROGRESS)
    client.cancel(job.id)
    assert client.wait(job.id, timeout=30).status is JobState.CANCELLED


def test_errors_arrive_as_what_they_are(client: Client) -> None:
    with pytest.raises(NotFound):
        client.get("job-" + "0" * 32)
    with pytest.raises(InvalidRequest) as raised:
        client.submit({**echo("x"), "seed": -1})
    assert raised.value.field == "seed"


def test_the_broker_is_closed_to_others(stack: EmbeddedStack) -> None:
    from redis import Redis
    from redis.exceptions import AuthenticationError

    port = int(stack.settings.broker_url.get_secret_value().rpartition(":")[2].partition("/")[0])
    with Redis(host="127.0.0.1", port=port) as stranger, pytest.raises(AuthenticationError):
        stranger.ping()
    config = stack.settings.data_dir / "valkey" / "valkey.conf"
    assert config.stat().st_mode & 0o077 == 0
    password = stack.settings.broker_url.get_secret_value().split(":")[2].partition("@")[0]
    assert password not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_the_broker_is_small_and_writes_nothing_to_disk(stack: EmbeddedStack) -> None:
    from redis import Redis

    with Redis.from_url(stack.settings.broker_url.get_secret_value(), decode_responses=True) as broker:
        found = broker.config_get("maxmemory", "maxmemory-policy", "appendonly", "save")
    assert found == {"maxmemory": str(64 << 20), "maxmemory-policy": "noeviction", "appendonly": "no", "save": ""}


def test_a_second_stack_in_the_directory_is_refused(stack: EmbeddedStack) -> None:
    second = EmbeddedStack(Settings(data_dir=stack.settings.data_dir), pipelines=["echo"])
    with pytest.raises(StackError, match="another stack runs in"):
        second.start()
    assert child(stack, "api").state is ChildState.READY


def test_a_taken_port_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stack = EmbeddedStack(Settings(data_dir=tmp_path), pipelines=["echo"], port=port)
        with pytest.raises(StackError, match=rf"cannot listen on 127\.0\.0\.1 port {port}"):
            stack.start()
    assert running_stack(tmp_path) is None


def test_a_child_that_dies_at_its_start_ends_the_stack_with_its_last_words(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", database_url="sqlite:////proc/nowhere/x.sqlite")
    with pytest.raises(StackError):
        EmbeddedStack(settings, pipelines=["echo"]).start()
    settings = Settings(data_dir=tmp_path / "data", storage_url="s3://")
    with pytest.raises(StackError, match=r"(?s)ended with .* while starting; the end of .*\.log:\n    ") as raised:
        EmbeddedStack(settings, pipelines=["echo"]).start()
    assert "storage_url" in raised.value.message


HALF_RUNNER = """
from dataclasses import replace
from omni_jobs.pipelines.declarations import ProcessorDeclaration
from workers.runners.echo.declaration import ECHO
echo = ECHO.processors["echo"]
HALF = replace(ECHO, implementation="half_runner:Runner", processors={"echo": replace(echo, runner="half")})
"""


def test_a_pipeline_without_its_plug_in_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, configs = tmp_path / "site", tmp_path / "configs"
    about = site / "half-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 1\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[omni_jobs.runners]\nhalf = half_declared:HALF\n", encoding="utf-8")
    (site / "half_declared.py").write_text(HALF_RUNNER, encoding="utf-8")
    (site / "half_runner.py").write_text("import colours_of_the_sea\nclass Runner: ...\n", encoding="utf-8")
    echo_yaml = (ROOT / "stage_configs" / "echo.yaml").read_text(encoding="utf-8")
    configs.mkdir()
    (configs / "echo.yaml").write_text(echo_yaml, encoding="utf-8")
    for name, kind in (("half", "half"), ("gone", "not_installed")):
        text = echo_yaml.replace("name: echo", f"name: {name}").replace("kind: echo", f"kind: {kind}")
        (configs / f"{name}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    settings = Settings(data_dir=tmp_path / "data", stage_configs=configs, load_limit_s=START_S)
    told: list[str] = []
    with EmbeddedStack(settings, pipelines=["echo", "gone", "half"], on_notice=told.append) as stack:
        assert stack.served == ["echo"]
        missing, broken = told
        at = f"{configs / 'gone.yaml'}:10: stages.first.kind: no such plug-in 'not_installed' of omni_jobs.runners"
        assert missing.startswith(f"pipeline gone is not served: {at}")
        assert broken.startswith("pipeline half is not served, the others are: worker half.")
        assert (
            "'half_runner:Runner' cannot be loaded: ModuleNotFoundError: No module named 'colours_of_the_sea'" in broken
        )
        with Client(stack.url) as client:
            assert client.wait(client.submit(echo("all is well")).id, timeout=60).status is JobState.COMPLETED
            with pytest.raises(PluginBroken, match="not_installed"):
                client.submit({**echo("nobody is there"), "model": "gone"})
        ready = httpx2.get(f"{stack.url}/readyz", timeout=60, trust_env=False).json()
        assert (ready["status"], ready["pipelines"]["echo"]["ok"]) == ("degraded", True)
        assert ready["pipelines"]["gone"]["error"]["code"] == "plugin_broken"
    with pytest.raises(PluginBroken, match="not_installed"):
        EmbeddedStack(settings, pipelines=["gone"])


def test_a_full_disk_is_told_before_anything_starts(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, min_free_bytes=1 << 60)
    with pytest.raises(StorageFull, match="no room"):
        EmbeddedStack(settings, pipelines=["echo"]).start()
    assert running_stack(tmp_path) is None
    assert list((tmp_path / "logs").iterdir()) == []


def test_the_pause_before_a_restart_grows_and_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    dying = Child("dying", ["true"], environment={}, directory=tmp_path, log=tmp_path / "log")
    pauses = []
    for _ in range(8):
        dying.schedule_restart()
        pauses.append(dying.restart_at - now)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0]
    dying.mark_ready()
    now += 61.0
    dying.schedule_restart()
    assert dying.restart_at == now
    dying.log.mkdir()
    for pause_s in (1.0, 2.0, 4.0):  # where no process starts, the last one that was steady does not count again
        with pytest.raises(OSError, match="log"):
            dying.start(lambda pid: None)
        dying.schedule_restart()
        assert dying.restart_at == now + pause_s


# The command line against this stack.


def command(stack: EmbeddedStack, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMNI_JOBS_DATA_DIR": str(stack.settings.data_dir)}
    environment.pop("OMNI_JOBS_URL", None)
    return subprocess.run(
        [*OMNI_JOBS, *arguments], env=environment, input=stdin, capture_output=True, text=True, timeout=120
    )


def test_the_command_line_from_submit_to_result(stack: EmbeddedStack, tmp_path: Path) -> None:
    submitted = command(stack, "submit", "-p", "echo", "Hello", "--wait", "--out", str(tmp_path / "out"))
    assert (submitted.returncode, submitted.stdout) == (0, "Hello\n")
    assert (tmp_path / "out" / "text.txt").read_text(encoding="utf-8") == "Hello"
    job_id = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))["id"]
    shown = command(stack, "status", job_id, "--json")
    assert json.loads(shown.stdout)["status"] == "completed"
    assert job_id in command(stack, "status").stdout
    assert "second" in command(stack, "status", job_id).stdout
    again = command(stack, "result", job_id, "--json")
    assert json.loads(again.stdout)["result"]["text"] == "Hello"


def test_the_command_line_tells_what_failed_by_its_exit_code(stack: EmbeddedStack) -> None:
    body = json.dumps(echo("slow", delay_s=50))
    slow = command(stack, "submit", "--body", "-", "--wait", "--timeout", "1", stdin=body)
    assert slow.returncode == 5
    job_id = re.findall(r"job-[0-9a-f]+", slow.stderr)[0]
    cancelled = command(stack, "cancel", job_id)
    assert cancelled.returncode == 0
    assert cancelled.stdout.strip() in ("cancelling", "cancelled")
    assert command(stack, "result", job_id, "--wait").returncode == 6
    refused = command(stack, "submit", "-p", "nope", "Hello")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "unknown pipeline 'nope'" in refused.stderr


def test_the_readme_runs(stack: EmbeddedStack, tmp_path: Path) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    readme = readme.replace("http://127.0.0.1:8000", stack.url)
    # Those for OpenAI's clients need another pipeline: tests/e2e/test_readme_openai.py.
    *_, client, offline = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", client], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "completed Hello\n"
    done = subprocess.run([sys.executable, "-c", offline], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "Hello\n你好\n"
    assert (tmp_path / "hello" / "text.txt").read_text(encoding="utf-8") == "Hello"
    (curl,) = re.findall(r"^curl .*?\}'$", readme, re.DOTALL | re.MULTILINE)
    if shutil.which("curl"):
        answer = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True)
        assert json.loads(answer.stdout)["status"] in ("queued", "in_progress", "completed")


def test_the_page_of_the_clients_runs(stack: EmbeddedStack, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "client.md").read_text(encoding="utf-8")
    page = page.replace("http://127.0.0.1:8000", stack.url)
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    waiting, awaiting = (
        subprocess.run([sys.executable, "-c", each], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for each in blocks
    )
    waited, *answers = waiting.splitlines()
    assert waited == "completed Hello"
    assert [re.sub(r"job-\w{32}", "JOB", each) for each in answers] == ["1 JOB None", "2 JOB None"]
    waited, _, streamed = awaiting.partition("job\n")
    assert waited == "Hello\n你好\ncompleted\n"
    assert [each for each in streamed.splitlines() if each != "stage"] == ["你好", "job.completed"]
    texts = {path.read_text(encoding="utf-8") for path in (tmp_path / "awaited").glob("*/text.txt")}
    assert texts == {"Hello", "你好"}


# What dies is started again.


def test_jobs_outlive_a_killed_worker(stack: EmbeddedStack, client: Client) -> None:
    job = client.submit(echo("still here", delay_s=3))
    until(lambda: client.get(job.id).status is JobState.IN_PROGRESS)
    before = pid_of(stack, "worker echo.first")
    os.kill(before, signal.SIGKILL)
    done = client.wait(job.id, timeout=200)
    assert done.status is JobState.COMPLETED
    assert done.stages[0].attempt == 2
    until(lambda: child(stack, "worker echo.first").state is ChildState.READY)
    assert pid_of(stack, "worker echo.first") != before
    assert child(stack, "worker echo.first").restarts == 1
    log = child(stack, "worker echo.first").log
    until(lambda: "worker echo.first is ready again" in NOTICES)
    assert NOTICES[0] == f"worker echo.first ended with signal SIGKILL; it is started anew at once ({log})"


def test_jobs_outlive_a_killed_broker_and_a_killed_api(stack: EmbeddedStack, client: Client) -> None:
    os.kill(pid_of(stack, "valkey"), signal.SIGKILL)
    os.kill(pid_of(stack, "api"), signal.SIGKILL)
    for name in ("valkey", "api"):
        until(lambda name=name: child(stack, name).restarts == 1 and child(stack, name).state is ChildState.READY)
    job = client.wait(client.submit(echo("still here")).id, timeout=120)
    assert job.status is JobState.COMPLETED


def test_jobs_outlive_everything_that_is_killed_while_they_run(stack: EmbeddedStack, client: Client) -> None:
    jobs = [client.submit(echo(f"job {number}", delay_s=0.3, payload_bytes=20_000)).id for number in range(60)]
    killed = {name: pid_of(stack, name) for name in ("worker echo.second", "valkey", "rescuer", "api")}
    for number, pid in enumerate(killed.values(), 1):
        until(lambda number=number: _ended_of(stack, jobs) > 8 * number, 120)
        os.kill(pid, signal.SIGKILL)
    for name, pid in killed.items():
        until(lambda name=name, pid=pid: child(stack, name).pid != pid and child(stack, name).state is ChildState.READY)
    for job_id in jobs:
        assert client.wait(job_id, timeout=120).status is JobState.COMPLETED


def _ended_of(stack: EmbeddedStack, jobs: Sequence[str]) -> int:
    """By SQL: the API may be away."""
    database = Database(stack.settings.resolved_database_url)
    try:
        return sum(Jobs(database).get(job_id).status.is_final for job_id in jobs)
    finally:
        database.close()


def test_an_s3_server_that_is_away_at_the_start(seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy:
        proxy.set(Fault(refuse=True))
        settings = seaweedfs.settings(tmp_path / "data", "stack").model_copy(
            update={"s3_endpoint_url": proxy.url, "load_limit_s": START_S}
        )
        with EmbeddedStack(settings, pipelines=["echo"]) as stack, Client(stack.url) as client:
            job = client.submit(echo("patient", payload_bytes=100_000))
            until(lambda: client.get(job.id).stages[0].errors, 60)
            proxy.clear()
            assert client.wait(job.id, timeout=120).status is JobState.COMPLETED
            assert all(view.restarts == 0 for view in stack.children())
