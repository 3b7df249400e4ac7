"""What docs/comparison.md says of others has its source, and of Celery its issue with number, title and state."""

import re

from tests.docs.pages import page

TEXT = page("comparison.md")
ROWS = re.findall(r"^\| (\[(?:celery|kombu)#.*?) \| (.*?) \| (.*?) \|$", TEXT, re.MULTILINE)
ISSUE = r"\[(celery|kombu)#(\d+)\]\(https://github\.com/celery/(celery|kombu)/issues/(\d+)\)"


def test_each_issue_is_cited_once_with_its_own_address() -> None:
    cited = re.findall(ISSUE, TEXT)
    assert len(cited) >= 15
    assert len(cited) == len(set(cited)) == TEXT.count("github.com/celery/")
    assert [each for each in cited if each[:2] != each[2:]] == []


def test_each_row_says_what_is_lost_and_what_is_here() -> None:
    assert len(ROWS) >= 10
    for issues, lost, here in ROWS:
        assert len(re.findall(rf"{ISSUE} .+? \((?:open|closed)\)", issues)) == len(re.findall(ISSUE, issues))
        assert lost.endswith(".")
        assert here.endswith(".")


def test_what_others_do_better_stands_first() -> None:
    assert re.findall(r"^## (.*)", TEXT, re.MULTILINE)[0] == "What others do better"
