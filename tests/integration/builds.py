"""Builds of omni-jobs as wheels: that of this tree, and later ones, which have further revisions of the schema."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omni_jobs.database.database import REVISION

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Build:
    """An unpacked wheel, which processes take in place of the tree; its dependencies are those of the tests."""

    directory: Path
    revision: str

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The environment of its processes. They must not run in the tree's directory, which Python looks at first."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
        return {**plain, **variables, "PYTHONPATH": str(self.directory), "OMP_NUM_THREADS": "1"}

    def start(
        self, variables: Mapping[str, str], *words: str, log: Path, fd: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process of ``omni-jobs``. ``fd``: the socket of an API."""
        words = (*words, *(() if fd is None else ("--fd", str(fd))))
        with open(log, "wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "omni_jobs.cli", *words],
                env=self.environment(variables),
                cwd=self.directory,
                pass_fds=() if fd is None else (fd,),
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def run(self, variables: Mapping[str, str], *words: str) -> tuple[int, str, str]:
        """Run a command of ``omni-jobs`` to its end, and return its exit code, its output and its errors."""
        done = subprocess.run(
            [sys.executable, "-m", "omni_jobs.cli", *words],
            env=self.environment({**variables, "COLUMNS": "200"}),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    def later(self, directory: Path, revision: str, body: str) -> "Build":
        """Return the build of the next release, which has one revision more: ``body`` is the rest of its file."""
        shutil.copytree(self.directory, directory)
        head = f'"""For a test."""\n\nimport sqlalchemy as sa\nfrom alembic import op\n\nrevision = "{revision}"\n'
        head += f'down_revision = "{self.revision}"\nbranch_labels = None\ndepends_on = None\n'
        (directory / "omni_jobs" / "migrations" / "versions" / f"{revision}_later.py").write_text(head + body)
        file = directory / "omni_jobs" / "database" / "database.py"
        known = f'REVISION = "{self.revision}"'
        source = file.read_text(encoding="utf-8")
        assert source.count(known) == 1
        file.write_text(source.replace(known, f'REVISION = "{revision}"'), encoding="utf-8")
        return Build(directory, revision)


def build_tree(directory: Path) -> Build:
    """Build the wheel of this tree, and unpack it."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "tree")
    return Build(directory / "tree", REVISION)


EXPANDS = """
release = "7.0.0"


def upgrade() -> None:
    op.add_column("stage_runs", sa.Column("later", sa.Text(), nullable=True))
    op.add_column("workers", sa.Column("later", sa.Text(), nullable=True))
    op.create_table("later", sa.Column("job_id", sa.String(40), primary_key=True))


def downgrade() -> None:
    op.drop_table("later")
    op.drop_column("workers", "later")
    op.drop_column("stage_runs", "later")
"""
"""The body of a revision after which older builds go on."""

CONTRACTS = """
release = "8.0.0"
oldest = "9001"


def upgrade() -> None:
    op.drop_column("stage_runs", "steps")


def downgrade() -> None:
    op.add_column("stage_runs", sa.Column("steps", sa.Text(), nullable=True))
"""
"""The body of a revision that takes away what builds use to which 9001 is unknown."""
