"""``omni-jobs tenants`` and ``omni-jobs keys``, on both databases: output, exit codes, and two operators at once."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from omni_jobs.cli import Exit, app
from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs
from omni_jobs.tenants.key_store import ApiKeys, digest_of
from tests.integration.job_steps import new_job, submit_one


@pytest.fixture(autouse=True)
def _environment(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_JOBS_DATABASE_URL", database_url)
    monkeypatch.setenv("OMNI_JOBS_STORAGE_URL", "file:///nowhere")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_tenant_and_its_keys(database: Database) -> None:
    assert run("tenants", "create", "acme", "--weight", "3", "--limit", "queued_jobs=5").exit_code == 0
    changed = run("tenants", "set", "acme", "-l", "queued_jobs=none", "-l", "media_bytes=9", "--json")
    assert json.loads(changed.stdout)["limits"]["media_bytes"] == 9
    [listed] = json.loads(run("tenants", "list", "--json").stdout)
    assert (listed["name"], listed["weight"], listed["limits"]["queued_jobs"]) == ("acme", 3.0, None)

    plain = run("keys", "create", "--tenant", "acme", "--scope", "read")
    key = plain.stdout.strip()  # nothing else: a file of it is a file of the key
    digest = digest_of(key)
    assert digest is not None
    assert ApiKeys(database).find_all([digest])
    assert key not in plain.stderr
    made = json.loads(run("keys", "create", "-t", "acme", "-s", "admin", "--expires-in-days", "1", "--json").stdout)
    assert made["expires_at"] > made["created_at"]
    lists = run("keys", "list", "--tenant", "acme").stdout + run("keys", "list", "--json").stdout
    assert made["id"] in lists
    assert made["hint"] in lists
    assert not any(secret in lists for secret in (key, made["key"], digest))
    assert run("keys", "revoke", made["id"]).exit_code == 0
    assert [one["revoked_at"] is None for one in json.loads(run("keys", "list", "--json").stdout)] == [True, False]
    assert run("tenants", "delete", "acme").exit_code == 0
    assert json.loads(run("keys", "list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tenants", "create", "acme"], Exit.FAILED, "already"),
        (["tenants", "create", "a b"], Exit.USAGE, "field name"),
        (["tenants", "create", "b", "--weight", "0"], Exit.USAGE, "field weight"),
        (["tenants", "create", "b", "--weight", "nan"], Exit.USAGE, "field weight"),
        (["tenants", "set", "acme", "--weight=-1"], Exit.USAGE, "field weight"),
        (["tenants", "set", "acme", "--weight", "1e9"], Exit.USAGE, "field weight"),
        (["tenants", "set", "acme", "--limit", "speed=1"], Exit.USAGE, "field speed"),
        (["tenants", "set", "acme", "--limit", "queued_jobs"], 2, "--limit"),
        (["tenants", "set", "acme", "--limit", "queued_jobs=-1"], 2, "--limit"),
        (["tenants", "set", "other", "--weight", "1"], Exit.NOT_FOUND, "no tenant"),
        (["tenants", "delete", "other"], Exit.NOT_FOUND, "no tenant"),
        (["tenants", "delete", "acme"], Exit.FAILED, "1 unfinished jobs"),
        (["keys", "create", "--tenant", "other", "--scope", "read"], Exit.NOT_FOUND, "tenants create"),
        (["keys", "create", "--tenant", "acme", "--scope", "everything"], Exit.USAGE, "field scopes"),
        (["keys", "create", "--tenant", "acme"], 2, "--scope"),
        (["keys", "revoke", "key-0"], Exit.NOT_FOUND, "no key"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_said(arguments: list[str], code: int, said: str, database: Database) -> None:
    assert run("tenants", "create", "acme").exit_code == 0
    submit_one(Jobs(database), new_job(tenant="acme"))
    result = run(*arguments)
    assert (result.exit_code, said in result.stderr) == (code, True), result.output


def test_without_a_schema_the_command_says_what_to_do(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_JOBS_DATABASE_URL", f"sqlite:///{tmp_path}/empty.sqlite")
    result = run("keys", "list")
    assert (result.exit_code, "omni-jobs migrate" in result.stderr) == (Exit.UNREACHABLE, True)


def test_two_operators_at_once_in_processes_of_their_own(database: Database) -> None:
    create = [sys.executable, "-m", "omni_jobs.cli", "tenants", "create", "acme"]
    both = [subprocess.Popen(create, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = sorted((process.wait(60), process.communicate()[1]) for process in both)
    assert [code for code, _ in ended] == [0, Exit.FAILED]
    assert "already" in ended[1][1]


def test_a_key_that_is_unknown_spares_no_other(database: Database) -> None:
    """Keys are revoked in haste, because they have leaked."""
    assert run("tenants", "create", "acme").exit_code == 0
    made = [json.loads(run("keys", "create", "-t", "acme", "-s", "read", "--json").stdout)["id"] for _ in range(2)]
    result = run("keys", "revoke", made[0], "key-0", made[1])
    assert result.exit_code == Exit.NOT_FOUND
    assert "omni-jobs: key-0: there is no key" in result.stderr
    assert all(one["revoked_at"] for one in json.loads(run("keys", "list", "--json").stdout))
