"""The files of SQL texts: both databases have the same statements, each says what it does and is named somewhere."""

import re
from pathlib import Path

import pytest

import omni_jobs
from omni_jobs.database.statement import Statements, texts

OF_POSTGRESQL_ALONE = {"keys", "rows"}
"""How a list or rows are read; SQLite runs a bulk statement once for each row."""
PACKAGE = Path(omni_jobs.__file__).parent
WORDS = PACKAGE / "database" / "words.sql"
FILES = sorted(PACKAGE.rglob("*.sql"))
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@each_file
def test_both_databases_have_the_same_statements(path: Path) -> None:
    assert set(texts(path, "postgresql")) - set(texts(path, "sqlite")) == OF_POSTGRESQL_ALONE
    assert set(texts(path, "sqlite")) <= set(texts(path, "postgresql"))


@each_file
def test_every_text_is_used_beside_it(path: Path) -> None:
    """In the Python file of its name, or in another text."""
    content = path.read_text(encoding="utf-8")
    names = set(texts(path, "postgresql"))
    if path == WORDS:
        named = "".join(each.read_text(encoding="utf-8") for each in FILES)
    else:
        names -= set(texts(WORDS, "postgresql"))
        named = content + path.with_suffix(".py").read_text(encoding="utf-8")
    assert names <= {*re.findall(r'"(\w+)"', named), *re.findall(r"\{(?:in )?(\w+)\}", named)}


@each_file
def test_what_the_file_beside_it_names_is_there(path: Path) -> None:
    if path != WORDS:
        code = path.with_suffix(".py").read_text(encoding="utf-8")
        assert set(re.findall(r'_sql(?:\[|\.bulk\(\s*)"(\w+)"', code)) <= set(texts(path, "sqlite"))


@each_file
def test_no_two_texts_of_a_file_have_one_name(path: Path) -> None:
    names = re.findall(r"^-- ([a-z]\w*): ", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert names
    assert len(names) == len(set(names))
    assert path == WORDS or not set(names) & set(texts(WORDS, "postgresql"))


def test_a_text_of_one_database_and_one_of_both(tmp_path: Path) -> None:
    path = tmp_path / "verb.sql"
    path.write_text(
        "-- both: for both.\n-- A comment.\nSELECT 1\n\n"
        "-- each: for each.\n-- postgresql\nSELECT {now}, ({both})\n-- sqlite\nSELECT ({both})\n"
    )
    assert texts(path, "sqlite")["each"] == "SELECT (SELECT 1)"
    assert texts(path, "postgresql")["each"] == f"SELECT {texts(WORDS, 'postgresql')['now']}, (SELECT 1)"


def test_one_of_a_querys_rows_as_each_database_finds_them_without_a_scan(tmp_path: Path) -> None:
    path = tmp_path / "verb.sql"
    path.write_text("-- ids_of: a query.\nSELECT id FROM t\n\n-- all: its rows.\nDELETE FROM t WHERE id {in ids_of}\n")
    assert texts(path, "sqlite")["all"] == "DELETE FROM t WHERE id IN (SELECT id FROM t)"
    assert texts(path, "postgresql")["all"] == "DELETE FROM t WHERE id = ANY (ARRAY(SELECT id FROM t))"


def test_a_text_that_names_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "verb.sql").write_text("-- wrong: names a later one.\n{later}\n\n-- later: comes later.\nSELECT 1\n")
    with pytest.raises(KeyError, match="later"):
        texts(tmp_path / "verb.sql", "sqlite")


def test_the_statements_of_a_module_stand_beside_it() -> None:
    statements = Statements(str(PACKAGE / "jobs" / "life" / "claim.py"))
    assert statements["claim_next"] is statements["claim_next"]
