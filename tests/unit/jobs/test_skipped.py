"""Jobs that an action skips are counted by the kind of their reason, and of kinds there are not many."""

from omni_jobs.jobs.crew.skipped import MOST_KINDS, with_skipped
from omni_jobs.views import SkippedJobs


def skipped(message: str, count: int = 1, code: str = "conflict") -> SkippedJobs:
    return SkippedJobs(code=code, count=count, job_id=f"job-{message[-1]}", message=message)


def test_reasons_of_one_kind_are_counted_together_and_the_first_is_shown() -> None:
    first = skipped("job job-01a1fd71a36f is running: try again in 5 s", 2)
    again = skipped("job job-77a1fd71a36f is running: try again in 60 s", 3)
    other = skipped("its media are not kept any longer")
    found = with_skipped([first], [other, again])
    assert [(each.message, each.job_id, each.count) for each in found] == [
        (first.message, first.job_id, 5),
        (other.message, other.job_id, 1),
    ]
    assert len(with_skipped(found, [skipped(other.message, code="gone")])) == 3


def test_further_kinds_count_with_one_that_is_there() -> None:
    words = ["".join(chr(97 + int(digit)) for digit in str(number)) for number in range(MOST_KINDS + 5)]
    found = with_skipped([], [skipped(f"because of {word}") for word in words])
    found = with_skipped(found, [skipped("x", 7, "gone"), skipped(f"because of {words[0]}")])
    assert (len(found), sum(each.count for each in found)) == (MOST_KINDS, MOST_KINDS + 13)
    assert found[0].count == 2
