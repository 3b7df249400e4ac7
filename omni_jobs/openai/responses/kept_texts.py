"""``texts_of``: what is still kept of the texts of attempts, lost ones among them."""

from collections.abc import Sequence

from omni_jobs.jobs import Jobs, WantedText


def texts_of(jobs: Jobs, job_id: str, stage_run_id: int, attempts: Sequence[int], chars: int) -> dict[int, str]:
    """Return the first ``chars`` characters of what each of these attempts has written, by its number."""
    texts = dict.fromkeys(attempts, "")
    for piece in jobs.text_pieces([WantedText(job_id, stage_run_id, attempt, 0) for attempt in attempts]):
        known = len(texts[piece.attempt])
        if piece.start <= known < chars:
            texts[piece.attempt] += piece.text[known - piece.start :][: chars - known]
    return texts
