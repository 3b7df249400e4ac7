"""Keys of the object store that cannot be used: each command names the file, says what to do, and shows no key."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from omni_jobs.cli.exits import Exit
from omni_jobs.database.database import Database
from omni_jobs.errors import ConfigError
from omni_jobs.settings import Settings
from omni_jobs.storage import open_store
from tests.integration.echo_stack import EchoStack
from tests.services.seaweedfs import SeaweedFS
from tests.without_rights import without_rights

SECRET = "not-to-be-shown"
FIELD = "AWS_SHARED_CREDENTIALS_FILE"
WRONG = {  # content of the file, and what is said of it
    "missing": (None, "cannot be read: No such file or directory; make it"),
    "empty": ("\n", "is empty: write the section [default]"),
    "without a section": (f"aws_secret_access_key = {SECRET}\n", "cannot be parsed: write the section [default]"),
    "cut off": (f"[default\naws_secret_access_key = {SECRET}\n", "cannot be parsed: write the section [default]"),
    "not text": (f"[default]\n{SECRET} = \udcff\n", "cannot be parsed: write the section [default]"),
    "of another profile": (
        f"[other]\naws_access_key_id = {SECRET}\naws_secret_access_key = {SECRET}\n",
        "has none in its section [default]: write",
    ),
    "half": (f"[default]\naws_access_key_id = {SECRET}\n", "aws_secret_access_key is missing beside the other half"),
    "of empty keys": ("[default]\naws_access_key_id =\naws_secret_access_key =\n", "is empty in "),
}


@pytest.fixture(autouse=True)
def no_other_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "s3_credentials"
    monkeypatch.setenv(FIELD, str(path))
    return path


def write(file: Path, content: str | None) -> None:
    if content is not None:
        file.write_bytes(content.encode(errors="surrogateescape"))


def on_s3(directory: Path) -> Settings:
    return Settings(data_dir=directory, storage_url="s3://bucket", s3_endpoint_url="http://127.0.0.1:9")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_store_does_not_open_with_wrong_keys(wrong: str, file: Path, tmp_path: Path) -> None:
    content, said = WRONG[wrong]
    write(file, content)
    with pytest.raises(ConfigError) as caught:
        open_store(on_s3(tmp_path))
    assert said in str(caught.value)
    assert (str(file) in str(caught.value), caught.value.field) == (True, FIELD)
    assert not caught.value.retryable
    chain = f"{caught.value.__cause__}{'' if caught.value.__suppress_context__ else caught.value.__context__}"
    assert SECRET not in str(caught.value) + chain


def test_a_directory_in_place_of_the_file_is_told(file: Path, tmp_path: Path) -> None:
    file.mkdir()
    with pytest.raises(ConfigError, match="cannot be read: Is a directory; name a file"):
        open_store(on_s3(tmp_path))


def test_no_file_is_named_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    said = rf"{tmp_path}/\.aws/credentials cannot be read: No such file or directory; set {FIELD}, or make it"
    with pytest.raises(ConfigError, match=said):
        open_store(on_s3(tmp_path))


def test_a_profile_that_no_file_has_is_told(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, WRONG["of another profile"][0])
    monkeypatch.setenv("AWS_PROFILE", "mine")
    with pytest.raises(ConfigError, match="mine") as caught:
        open_store(on_s3(tmp_path))
    assert caught.value.field == "AWS_PROFILE"


def test_keys_from_elsewhere_make_a_missing_file_no_mistake(
    seaweedfs: SeaweedFS, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    open_store(seaweedfs.settings(tmp_path, "elsewhere")).check_writes()


def test_the_file_is_mended_after_which_the_service_takes_objects(
    seaweedfs: SeaweedFS, file: Path, tmp_path: Path
) -> None:
    settings = seaweedfs.settings(tmp_path, "mended")
    with pytest.raises(ConfigError):
        open_store(settings)
    keys = {name.lower(): value for name, value in seaweedfs.environment.items()}
    write(file, "[default]\n" + "".join(f"{name} = {value}\n" for name, value in keys.items()))
    open_store(settings).check_writes()


class TestCommands:
    """A real service is there, so that nothing but the keys is wrong."""

    COMMANDS = (
        ("storage", "prepare", "--wait-for", "60"),
        ("api", "--port", "0"),
        ("rescuer",),
        ("prune",),
        ("backup",),
        ("restore",),
    )

    @pytest.fixture
    def variables(self, seaweedfs: SeaweedFS, file: Path, tmp_path: Path, sqlite_url: str) -> dict[str, str]:
        with closing(Database(sqlite_url)) as database:
            database.migrate()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
        return kept | {
            "OMNI_JOBS_DATA_DIR": str(tmp_path / "data"),
            "OMNI_JOBS_DATABASE_URL": sqlite_url,
            "OMNI_JOBS_BROKER_URL": "redis://127.0.0.1:9/0",
            "OMNI_JOBS_STORAGE_URL": f"s3://{seaweedfs.bucket}/x",
            "OMNI_JOBS_S3_ENDPOINT_URL": seaweedfs.endpoint_url,
            "OMNI_JOBS_PIPELINES": "echo",
        }

    def run(self, variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*without_rights(), sys.executable, "-m", "omni_jobs.cli", *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)

    @pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
    def test_each_that_opens_the_store_ends_with_one_line(
        self, command: tuple[str, ...], variables: dict[str, str], file: Path, tmp_path: Path
    ) -> None:
        write(file, WRONG["cut off"][0])
        place = {"backup": tmp_path / "copy", "restore": tmp_path / "copy"}.get(command[0])
        done = self.run(variables, *command, *([str(place)] if place else []))
        last = done.stderr.splitlines()[-1]
        assert done.returncode == Exit.FAILED, done.stderr
        assert last == f"omni-jobs: {FIELD}: {file} cannot be parsed: {last.partition(' parsed: ')[2]}"
        assert "Traceback" not in done.stderr
        assert SECRET not in done.stderr + done.stdout

    def test_a_file_that_this_user_may_not_read_is_told(self, variables: dict[str, str], file: Path) -> None:
        write(file, f"[default]\naws_secret_access_key = {SECRET}\n")
        file.chmod(0)
        done = self.run(variables, "storage", "prepare")
        assert done.returncode == Exit.FAILED, done.stderr
        said = f"{file} cannot be read: Permission denied; let the user of this process read it"
        assert done.stderr == f"omni-jobs: {FIELD}: no keys of the object store: {said}\n"

    @pytest.mark.parametrize("wrong", ["missing", "cut off"])
    def test_the_doctor_names_the_file(self, wrong: str, variables: dict[str, str], file: Path) -> None:
        write(file, WRONG[wrong][0])
        done = self.run(variables, "doctor", "--only", "storage", "--json")
        [found] = json.loads(done.stdout)
        assert (done.returncode, found["state"]) == (1, "error")
        assert found["message"].startswith(f"{FIELD}: ")
        assert str(file) in found["message"]
        assert "the file that it names" in found["remedy"]
        assert SECRET not in done.stdout + done.stderr

    def test_a_worker_ends_with_one_line(
        self, variables: dict[str, str], file: Path, tmp_path: Path, sqlite_url: str, valkey_server: str
    ) -> None:
        write(file, WRONG["cut off"][0])
        names = ("OMNI_JOBS_STORAGE_URL", "OMNI_JOBS_S3_ENDPOINT_URL")
        stack = EchoStack(tmp_path, sqlite_url, valkey_server, {name: variables[name] for name in names})
        try:
            worker = stack.launch("first")
            assert worker.process.wait(120) == Exit.FAILED
        finally:
            stack.close()
        log = worker.log.read_text()
        assert f"this worker cannot start: {FIELD}: {file} cannot be parsed: write the section" in log
        assert SECRET not in log
