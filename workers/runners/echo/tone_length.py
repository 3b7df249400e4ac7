"""``tone_s``: how long a text sounds as a tone."""

from omni_jobs.errors import InvalidRequest
from workers.runners.echo.parameters import MOST_SOUND_S, ToneParameters

_CHARACTER_S = 0.05
_LEAST_S = 0.1


def tone_s(text: str, parameters: ToneParameters) -> float:
    """Return the seconds of a text's tone. Raises InvalidRequest for a text of more than ``MOST_SOUND_S``."""
    if parameters.seconds is not None:
        return parameters.seconds
    seconds = max(_LEAST_S, len(text) * _CHARACTER_S / parameters.speed)
    if seconds > MOST_SOUND_S:
        raise InvalidRequest(
            f"{len(text)} characters would sound for {seconds:.0f} s; at most {MOST_SOUND_S:.0f} s are made",
            field="messages",
        )
    return seconds
