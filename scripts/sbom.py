"""Print the packages of a lock as a CycloneDX SBOM. scripts/sbom calls it.

An image has the packages of one lock and omni-jobs itself: core (omni-jobs-api), worker-cpu (omni-jobs-worker-cpu),
worker-cuda (omni-jobs-worker) or worker-cpu-torch (omni-jobs-worker-cpu-torch).
"""

import argparse
import sys
import tomllib
import uuid

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from install import LOCKS, ROOT, hashes, pins
from packageurl import PackageURL


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/sbom", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lock", choices=sorted(path.stem for path in LOCKS.glob("*.txt")), help="a file of locks/")
    print(JsonV1Dot6(bom(parser.parse_args(arguments).lock)).output_as_string(indent=1))


def bom(name: str) -> Bom:
    """Return the SBOM of a lock. The same lock has the same serial number."""
    lock = LOCKS / f"{name}.txt"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        bom_ref=project["name"],
        licenses=[LicenseExpression(project["license"])],
    )
    packages = [package(each, version, hashes(lock, each)) for each, version in pins(lock).items()]
    made = Bom(components=packages, serial_number=uuid.uuid5(uuid.NAMESPACE_OID, lock.read_text(encoding="utf-8")))
    made.metadata.component = ours
    made.register_dependency(ours, packages)
    return made


def package(name: str, version: str, digests: list[str]) -> Component:
    """Return a package, with the hashes of its files as far as the lock has them."""
    url = PackageURL("pypi", name=name, version=version)
    known = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in digests]
    return Component(name=name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url), hashes=known)


if __name__ == "__main__":
    main(sys.argv[1:])
