"""Settings: secrets in files, and what is never shown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from omni_jobs.errors import ConfigError
from omni_jobs.settings import Settings, read_settings
from tests.without_rights import without_rights

SECRETS = {
    "OMNI_JOBS_BROKER_URL": "redis://:hidden-word@broker:6379/0",
    "OMNI_JOBS_DATABASE_URL": "postgresql://omni:hidden-word@db:5432/omni_jobs",
    "OMNI_JOBS_API_KEY": "omni_hidden-word",
}
each_secret = pytest.mark.parametrize("variable", SECRETS)
each_of_a_child = pytest.mark.parametrize("variable", [name for name in SECRETS if name != "OMNI_JOBS_API_KEY"])


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OMNI_JOBS_")]:
        monkeypatch.delenv(name)


def value_of(settings: Settings, variable: str) -> str:
    value = getattr(settings, variable.removeprefix("OMNI_JOBS_").lower())
    return str(value.get_secret_value() if isinstance(value, SecretStr) else value)


@each_secret
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_secret_is_read_from_a_file(variable: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_bytes((SECRETS[variable] + end).encode())
    monkeypatch.setenv(f"{variable}_FILE", str(file))
    assert value_of(read_settings(), variable) == SECRETS[variable]


def test_a_file_is_named_in_any_case_as_settings_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("sqlite:////hidden-word")
    monkeypatch.setenv("omni_jobs_database_url_file", str(tmp_path / "secret"))
    settings = read_settings()
    assert settings.database_url == "sqlite:////hidden-word"
    assert settings.to_environment() == {"OMNI_JOBS_DATABASE_URL_FILE": str(tmp_path / "secret")}
    monkeypatch.setenv("omni_jobs_database_url", "sqlite:////other")
    with pytest.raises(ConfigError, match="not both"):
        read_settings()


@each_secret
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "one line"),
        (b"\n", "one line"),
        (b"hidden-word\nhidden-word\n", "one line"),
        (b"hidden-word" * 10_000, "one line"),
        (b"hidden-word\xff", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_secret_is_refused(
    variable: str, content: bytes | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv(f"{variable}_FILE", str(file))
    with pytest.raises(ConfigError, match=message) as caught:
        read_settings()
    assert caught.value.to_dict()["field"] == f"{variable}_FILE"
    assert "hidden-word" not in str(caught.value)


@each_secret
def test_a_directory_in_place_of_a_secret_is_refused(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{variable}_FILE", str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_settings()


def test_a_secret_that_this_user_may_not_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRETS["OMNI_JOBS_BROKER_URL"])
    file.chmod(0)
    command = [*without_rights(), sys.executable, "-m", "omni_jobs.cli", "migrate"]
    environment = {**os.environ, "OMNI_JOBS_BROKER_URL_FILE": str(file)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"omni-jobs: OMNI_JOBS_BROKER_URL_FILE: {file} cannot be read: Permission denied\n"


def test_a_secret_of_a_wrong_form_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("bogus://:hidden-word@broker/0")
    monkeypatch.setenv("OMNI_JOBS_BROKER_URL_FILE", str(tmp_path / "secret"))
    with pytest.raises(ConfigError) as caught:
        read_settings()
    assert caught.value.to_dict()["field"] == "OMNI_JOBS_BROKER_URL_FILE"
    assert "hidden-word" not in str(caught.value)


@each_secret
def test_a_secret_twice_is_refused(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRETS[variable])
    monkeypatch.setenv(f"{variable}_FILE", str(file))
    monkeypatch.setenv(variable, SECRETS[variable])
    with pytest.raises(ConfigError, match="not both") as caught:
        read_settings()
    assert caught.value.to_dict()["field"] == f"{variable}_FILE"


@each_of_a_child
def test_a_child_gets_the_file_not_the_secret(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text(SECRETS[variable])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"{variable}_FILE", "secret")
    environment = read_settings().to_environment()
    assert environment[f"{variable}_FILE"] == str(tmp_path / "secret")
    assert "hidden-word" not in "".join(environment.values())

    code = "from omni_jobs.settings import read_settings as r; s = r(); print(s.broker_url, s.resolved_database_url)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/")
    assert child.returncode == 0, child.stderr
    assert ("hidden-word" in child.stdout) is (variable == "OMNI_JOBS_DATABASE_URL")  # broker_url hides itself


@each_of_a_child
def test_a_secret_that_was_replaced_is_handed_on_itself(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded stack puts its own broker into the place of the one in the file."""
    (tmp_path / "secret").write_text(SECRETS[variable])
    monkeypatch.setenv(f"{variable}_FILE", str(tmp_path / "secret"))
    own = {"broker_url": SecretStr("redis://own"), "database_url": "sqlite:////own"}
    environment = read_settings().model_copy(update=own).to_environment()
    assert environment[variable] in {"redis://own", "sqlite:////own"}
    assert f"{variable}_FILE" not in environment


@pytest.mark.parametrize("end", ["", "_FILE"])
def test_no_child_gets_the_key_of_a_client(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text(SECRETS["OMNI_JOBS_API_KEY"])
    monkeypatch.setenv(f"OMNI_JOBS_API_KEY{end}", str(tmp_path / "secret"))
    assert read_settings().api_key is not None
    assert read_settings().to_environment() == {}


def test_settings_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    settings = read_settings()
    assert "hidden-word" in settings.resolved_database_url
    assert "hidden-word" not in repr(settings) + str(settings)
