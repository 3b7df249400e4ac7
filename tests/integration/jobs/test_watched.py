"""What workers write of watched jobs, on both databases."""

from omni_jobs.database.database import Database
from omni_jobs.errors import OutOfMemory
from omni_jobs.jobs import WATCHED_S, Jobs, ProgressReport, TextPiece, WantedText, Wishes
from tests.integration.job_steps import ANY_SCRIPT, claim, done, fail, failed, new_job, pass_time, register, submit_one


def piece(run: int, start: int, text: str, attempt: int = 1) -> TextPiece:
    return TextPiece(run, attempt, start, text)


def progress(run: int, chars: int, attempt: int = 1) -> ProgressReport:
    return ProgressReport(run, attempt, chars, None, "tokens", chars=chars)


def test_a_worker_learns_which_of_its_stage_runs_are_watched(jobs_or_forgetful: Jobs, database: Database) -> None:
    jobs = jobs_or_forgetful
    register(jobs, "w")
    before, later, unwatched = (submit_one(jobs, new_job()).job_id for _ in range(3))
    jobs.watch([before, "job-gone"])
    runs = {run.job_id: run for run in claim(jobs, "w", at_most=3)}
    assert runs[before].watched_since is not None
    assert runs[later].watched_since is runs[unwatched].watched_since is None
    jobs.watch([before, later])
    watched = jobs.wishes("w").watched
    assert watched == jobs.renew("w", 60).wishes.watched
    assert watched.keys() == {runs[before].stage_run_id, runs[later].stage_run_id}
    assert watched[runs[before].stage_run_id] == runs[before].watched_since  # it is watched for longer, not anew
    jobs.cancel(later)
    assert jobs.wishes("w") == Wishes(
        [runs[later].stage_run_id], {runs[before].stage_run_id: runs[before].watched_since}
    )
    pass_time(database, WATCHED_S)
    assert not jobs.wishes("w").watched


def test_a_text_is_read_from_any_character_on(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    register(jobs, "w")
    job_id = submit_one(jobs, new_job()).job_id
    [run] = claim(jobs, "w")
    number = run.stage_run_id
    lost = [piece(number, 0, "nobody watches")]
    jobs.report_progress([progress(number, 14)], lost)
    jobs.watch([job_id])
    assert jobs.text_pieces([WantedText(job_id, number, 1, 0)]) == []
    jobs.report_progress([progress(number, 8)], [piece(number, 0, "one "), piece(number, 4, ANY_SCRIPT)])
    jobs.report_progress([], [piece(number, 0, "one"), piece(number, 0, "one")])  # shorter than what is there
    whole = "one " + ANY_SCRIPT
    for have in range(len(whole) + 1):
        text, known = "", have
        for each in jobs.text_pieces([WantedText(job_id, number, 1, have)]):
            text, known = text + each.text[known - each.start :], each.start + len(each.text)
        assert text == whole[have:]
    assert jobs.text_pieces([WantedText(job_id, number, 2, 0), WantedText("job-x", number, 1, 0)]) == []
    assert jobs.get(job_id).stages[0].progress.text == whole  # type: ignore[union-attr]


def test_the_text_of_what_failed_stays_when_its_pieces_go(jobs: Jobs, database: Database) -> None:
    register(jobs, "w", lease_s=1000)
    ids = [submit_one(jobs, new_job()).job_id for _ in range(2)]
    jobs.watch(ids)
    cancelled, runs_on = claim(jobs, "w", at_most=2)
    for run in (cancelled, runs_on):
        jobs.report_progress([progress(run.stage_run_id, 3)], [piece(run.stage_run_id, 0, "abc")])
    jobs.cancel(cancelled.job_id)
    fail(jobs, failed(cancelled, "w", OutOfMemory("no room", stage="first")))
    for _ in range(2):
        assert jobs.get(cancelled.job_id).stages[0].progress.text == "abc"  # type: ignore[union-attr]
        pass_time(database, WATCHED_S + 61)
        jobs.rescue()
    assert jobs.text_pieces([WantedText(run.job_id, run.stage_run_id, 1, 0) for run in (cancelled, runs_on)]) == []
    jobs.watch([runs_on.job_id])
    [(number, since)] = jobs.wishes("w").watched.items()
    assert number == runs_on.stage_run_id
    assert since > (runs_on.watched_since or 0)  # so the worker knows that its pieces are gone


def test_a_watched_stage_run_that_succeeded_has_its_text_in_its_result(jobs: Jobs) -> None:
    register(jobs, "w")
    job_id = submit_one(jobs, new_job()).job_id
    jobs.watch([job_id])
    [run] = claim(jobs, "w")
    assert jobs.made_text(run.stage_run_id) is None
    jobs.report([done(run, "w", result={"text": "to the end"})])
    assert jobs.made_text(run.stage_run_id) == "to the end"


def test_a_deleted_job_leaves_no_text(jobs: Jobs) -> None:
    register(jobs, "w")
    job_id = submit_one(jobs, new_job()).job_id
    jobs.watch([job_id])
    [run] = claim(jobs, "w")
    jobs.report_progress([progress(run.stage_run_id, 3)], [piece(run.stage_run_id, 0, "abc")])
    jobs.cancel(job_id)
    fail(jobs, failed(run, "w", OutOfMemory("no room", stage="first")))
    wanted = [WantedText(job_id, run.stage_run_id, 1, 0)]
    assert jobs.text_pieces(wanted)
    jobs.delete(job_id)
    assert jobs.text_pieces(wanted) == []
