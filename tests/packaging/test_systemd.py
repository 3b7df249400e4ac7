"""The units of deploy/systemd: their command lines, settings, identities, what they may do, and how they stop.

A parser of the test's own reads them. Where systemd-analyze and systemd-sysusers are there, they take them as well;
elsewhere those tests say that they did not.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from tests.packaging.command_lines import parsed, unknown_variables
from tests.packaging.roles import FILES

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
PROGRAM = "/opt/omni-jobs/bin/omni-jobs"
SPECIFIERS = {"%i": "a.b-1", "%H": "gpu-a", "%t": "/run", "%d": "/run/credentials"}
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectControlGroups": "yes",
    "RestrictSUIDSGID": "yes",
    "CapabilityBoundingSet": "",
}


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    """Return the values of a unit's keys, in order, by section and key."""
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if found := re.fullmatch(r"\[(\w+)\]", line):
            section = sections.setdefault(found[1], {})
            continue
        key, is_there, value = line.partition("=")
        assert is_there, line
        assert re.fullmatch(r"[A-Z][A-Za-z]+", key), line
        section.setdefault(key, []).append(value)
    return sections


def variables(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def role_of(name: str) -> str:
    """The role of a service, whose name and user it has."""
    return re.sub(r"omni-jobs-(\w+)@?\.service", r"\1", name)


def environment(name: str) -> dict[str, str]:
    """Return what a unit sets itself."""
    values = " ".join(unit(name)["Service"].get("Environment", []))
    return dict(word.split("=", 1) for word in shlex.split(values))


@pytest.mark.parametrize("name", SERVICES)
def test_each_command_line_is_one_of_ours(name: str) -> None:
    worker = variables(UNITS / "worker.env.example")
    for line in unit(name)["Service"]["ExecStart"]:
        program, *words = shlex.split(line)
        assert program == PROGRAM
        filled = [re.sub(r"\$\{(\w+)\}", lambda found: worker[found[1]], word) for word in words]
        names, parameters = parsed([re.sub("%.", lambda found: SPECIFIERS[found[0]], word) for word in filled])
        assert not any("%" in str(value) or "$" in str(value) for value in parameters.values())
        if names == ["worker"]:
            assert parameters["stage"] in load_pipelines(ROOT / "stage_configs")[str(parameters["pipeline"])].stages
            assert parameters["slot"] == "a.b-1@gpu-a"


@pytest.mark.parametrize("name", SERVICES)
def test_each_variable_is_a_setting(name: str) -> None:
    assert unknown_variables(environment(name)) == set()


def test_the_examples_are_settings() -> None:
    settings = variables(UNITS / "settings.env.example") | variables(UNITS / "api.env.example")
    worker = variables(UNITS / "worker.env.example")
    assert unknown_variables(settings | worker) == {"WORKER_PIPELINE", "WORKER_STAGE"}
    Settings.model_validate_strings(
        {
            name.removeprefix("OMNI_JOBS_").lower(): value
            for name, value in (settings | worker).items()
            if name.startswith("OMNI_JOBS_") and name != "OMNI_JOBS_MODELS"
        }
    )
    assert not {name for name in settings if name.endswith("_FILE") or "PASSWORD" in name or "KEY" in name}
    for path in UNITS.glob("*.env.example"):
        told = set(re.findall(r"(?m)^#([A-Z0-9_]+)=", path.read_text(encoding="utf-8")))
        assert unknown_variables(dict.fromkeys(told, "")) == set()


@pytest.mark.parametrize("name", SERVICES)
def test_each_part_is_kept_from_the_rest_of_the_host(name: str) -> None:
    service = unit(name)["Service"]
    assert {key: service[key][-1] for key in HARDENED} == HARDENED
    assert service["EnvironmentFile"][0] == "/etc/omni-jobs/settings.env"
    assert ("PrivateDevices" in service) == (name != "omni-jobs-worker@.service")  # a card is a device


@pytest.mark.parametrize("name", SERVICES)
def test_each_part_gets_the_secrets_of_its_role_and_runs_as_its_user(name: str) -> None:
    """The files are those of scripts/secrets that docker-compose.yml gives to the same role."""
    service, role = unit(name)["Service"], role_of(name)
    loaded = dict(value.split(":", 1) for value in service["LoadCredential"])
    assert set(loaded.values()) == {f"/etc/omni-jobs/secrets/{file}" for file in FILES[role]}
    words = [*environment(name).values(), *" ".join(service["ExecStart"]).split()]
    assert {word.removeprefix("%d/") for word in words if word.startswith("%d/")} == set(loaded)
    assert service["User"] == service["Group"] == [f"omni-jobs-{role}"]
    assert f"omni-jobs/{role}" in service["StateDirectory"]


def test_there_is_a_unit_for_each_role() -> None:
    assert {role_of(name) for name in SERVICES} == set(FILES)


def test_systemd_makes_the_users(tmp_path: Path) -> None:
    sysusers = shutil.which("systemd-sysusers")
    if sysusers is None:
        pytest.skip("systemd-sysusers is not here: nobody has read sysusers.conf")
    (tmp_path / "etc").mkdir()
    done = subprocess.run(
        [sysusers, f"--root={tmp_path}", UNITS / "sysusers.conf"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    users = [line.split(":") for line in (tmp_path / "etc" / "passwd").read_text(encoding="utf-8").splitlines()]
    assert {(user[0], user[5]) for user in users} == {
        (f"omni-jobs-{role}", f"/var/lib/omni-jobs/{role}") for role in FILES
    }
    groups = [line.split(":") for line in (tmp_path / "etc" / "group").read_text(encoding="utf-8").splitlines()]
    assert {group[0] for group in groups if group[3] == "omni-jobs-worker"} == {"video", "render"}


def test_each_part_has_the_time_that_it_takes_to_stop() -> None:
    for name in SERVICES:
        service = unit(name)["Service"]
        if service["Type"] == ["oneshot"]:
            continue
        assert (service["KillMode"], service["KillSignal"], service["Restart"]) == (["mixed"], ["SIGTERM"], ["always"])
        assert unit(name)["Unit"]["PartOf"] == unit(name)["Install"]["WantedBy"] == ["omni-jobs.target"]
    stops_after = int(unit("omni-jobs-worker@.service")["Service"]["TimeoutStopSec"][0])
    assert stops_after >= Settings.model_fields["drain_s"].default + 50  # docs/operations/stop.md


def test_units_name_units_that_are_there() -> None:
    there = {path.name for path in UNITS.iterdir()} | {"network-online.target", "multi-user.target"}
    for path in [*UNITS.glob("*.service"), *UNITS.glob("*.target")]:
        sections = unit(path.name)
        pairs = {**sections["Unit"], **sections.get("Install", {})}
        keys = ("Wants", "Requires", "After", "PartOf", "WantedBy")
        assert {name for key in keys for value in pairs.get(key, []) for name in value.split()} <= there


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here: the units were read by this file's parser alone")
    for path in UNITS.iterdir():
        text = path.read_text(encoding="utf-8").replace(PROGRAM, sys.executable)  # which must be there
        (tmp_path / path.name.replace("@.", "@echo.first-1.")).write_text(text, encoding="utf-8")
    units = [str(path) for path in sorted(tmp_path.iterdir()) if path.suffix in (".service", ".target")]
    done = subprocess.run([analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "omni-jobs" in line]
    assert (done.returncode, ours) == (0, []), done.stderr
