"""The files of SQL texts: both databases have the same statements, and every one is named somewhere."""

import re
from pathlib import Path

import omni_jobs
from omni_jobs.database.statement import _texts

OF_POSTGRESQL_ALONE = {"keys", "rows"}
"""How a list or rows are read; SQLite runs a bulk statement once for each row."""


def test_both_databases_have_the_same_statements() -> None:
    assert set(_texts("postgresql")) - set(_texts("sqlite")) == OF_POSTGRESQL_ALONE
    assert set(_texts("sqlite")) <= set(_texts("postgresql"))


def test_every_text_is_used() -> None:
    """In a Python file, or in another text."""
    package = Path(omni_jobs.__file__).parent
    code = "".join(file.read_text() for file in package.rglob("*.py"))
    for dialect in ("postgresql", "sqlite"):
        texts = (package / "database" / f"{dialect}.sql").read_text()
        used = {*re.findall(r'"(\w+)"', code), *re.findall(r"\{(\w+)\}", texts)}
        assert set(_texts(dialect)) <= used
