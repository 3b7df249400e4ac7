"""List the known vulnerabilities of the locked packages. scripts/audit calls it.

pip-audit asks a service for each package: PyPI, or one that speaks OSV's API. A package that the service does not know
counts as not audited, because pip-audit itself calls that a success, and so does a mirror of PyPI that knows none.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from install import LOCKS, PYTHON, Command, pins

NONE_KNOWN, SOME_KNOWN, NOT_AUDITED = 0, 1, 3
_EPILOG = """\
exit codes:
  0  every package was asked for, and no vulnerability is known
  1  vulnerabilities are known; the list says which versions have none
  2  a wrong argument
  3  no vulnerability is known, but not every package could be asked for: no service answers, or it does not know them
"""


class Vulnerability(NamedTuple):
    package: str
    version: str
    id: str
    also: tuple[str, ...]  # its ids elsewhere
    mended_in: tuple[str, ...]


class Audit(NamedTuple):
    vulnerabilities: list[Vulnerability]
    asked: int  # packages that the service knows
    lacking: dict[str, str]  # why a package was not audited, by its name

    @property
    def code(self) -> int:
        if self.vulnerabilities:
            return SOME_KNOWN
        return NOT_AUDITED if self.lacking or not self.asked else NONE_KNOWN


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/audit",
        description="List the known vulnerabilities of the locked packages.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    locks = sorted(path.stem for path in LOCKS.glob("*.txt"))
    parser.add_argument(
        "--lock", action="append", choices=locks, help="a file of locks/; may be repeated; default: all"
    )
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi", help="which to ask; default: pypi")
    parser.add_argument("--osv-url", metavar="URL", help="the address of a service that speaks OSV's API")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    given = parser.parse_args(arguments)
    if given.osv_url and given.service != "osv":
        parser.error("--osv-url is for --service osv")
    service = ["--vulnerability-service", given.service, *(["--osv-url", given.osv_url] if given.osv_url else [])]
    packages = sorted({pin for lock in given.lock or locks for pin in public_pins(LOCKS / f"{lock}.txt")})
    report, why = ask(packages, service)
    found = read(report) if report is not None else Audit([], 0, {name: why for name, _ in packages})
    say_json(found) if given.json else say(found)
    warn(found, given.service, why)
    return found.code


def public_pins(lock: Path) -> set[tuple[str, str]]:
    """Return the names and versions of a lock, of a build of an index's own (2.13.0+cpu) the version that it is of."""
    return {(name, version.partition("+")[0]) for name, version in pins(lock).items()}


def ask(packages: list[tuple[str, str]], service: list[str]) -> tuple[dict[str, Any] | None, str]:
    """Return what pip-audit reports of the packages; None and the reason if the service does not answer."""
    rounds: list[dict[str, str]] = []  # pip-audit takes one version of a package at a time, and locks may differ
    for name, version in packages:
        free = next((each for each in rounds if name not in each), None)
        if free is None:
            rounds.append(free := {})
        free[name] = version
    dependencies = []
    for versions in rounds:
        report, why = ask_once(versions, service)
        if report is None:
            return None, why
        dependencies += report["dependencies"]
    return {"dependencies": dependencies}, ""


def ask_once(versions: dict[str, str], service: list[str]) -> tuple[dict[str, Any] | None, str]:
    command: Command = [PYTHON, "-m", "pip_audit", "--format", "json", "--no-deps", "--disable-pip", *service]
    command += ["--progress-spinner", "off", "--desc", "off"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("".join(f"{name}=={version}\n" for name, version in versions.items()))
        file.flush()
        done = subprocess.run([*command, "--requirement", file.name], capture_output=True, text=True)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None, (done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode}"])[-1]
    return report, ""


def read(report: dict[str, Any]) -> Audit:
    """Return what a report of pip-audit says."""
    found, asked, lacking = [], 0, {}
    for package in report["dependencies"]:
        if "skip_reason" in package:
            lacking[package["name"]] = package["skip_reason"]
            continue
        asked += 1
        for each in package["vulns"]:
            ids = each["id"], tuple(each["aliases"]), tuple(each["fix_versions"])
            found.append(Vulnerability(package["name"], package["version"], *ids))
    return Audit(sorted(set(found)), asked, lacking)


def say(found: Audit) -> None:
    for each in found.vulnerabilities:
        also = f" ({', '.join(each.also)})" if each.also else ""
        mended = f"mended in {', '.join(each.mended_in)}" if each.mended_in else "no version mends it yet"
        print(f"{each.package} {each.version}: {each.id}{also}: {mended}")
    if found.asked:
        print(f"known vulnerabilities: {len(found.vulnerabilities)}, in {found.asked} packages")


def warn(found: Audit, service: str, why: str) -> None:
    if not found.asked:
        reason = why or f"{service} answers, but knows none of them, as a mirror does that has files alone"
        print(f"scripts/audit: NOTHING WAS AUDITED, no service answers: {reason}", file=sys.stderr)
    elif found.lacking:
        names = ", ".join(sorted(found.lacking))
        print(f"scripts/audit: {len(found.lacking)} packages were NOT AUDITED: {names}", file=sys.stderr)


def say_json(found: Audit) -> None:
    vulnerabilities = [each._asdict() for each in found.vulnerabilities]
    print(
        json.dumps({"vulnerabilities": vulnerabilities, "asked": found.asked, "not_audited": found.lacking}, indent=2)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
