"""``show_sound``: says how long and how loud a job's sound is, and refuses silence."""

from pathlib import Path

import numpy as np
import soundfile  # type: ignore[import-untyped]
from rich.console import Console

from omni_jobs.cli.formats import duration_text
from omni_jobs.errors import StageError
from omni_jobs.views import JobView

SILENCE_RMS = 1e-3  # -60 dB of full scale


def show_sound(console: Console, job: JobView, directory: Path) -> None:
    """Print the length and loudness of a job's sound, whose file is in ``directory``.

    Raises StageError if there is none, it cannot be read, or it is silent.
    """
    name = next((artifact.name for artifact in job.artifacts if artifact.media_type.startswith("audio/")), None)
    if name is None:
        raise StageError("the job has no sound")
    try:
        samples, rate = soundfile.read(directory / name)
    except (OSError, soundfile.LibsndfileError) as error:
        raise StageError(f"{name} cannot be read: {error}") from error
    rms = float(np.sqrt(np.mean(samples**2))) if len(samples) else 0.0
    if rms < SILENCE_RMS:
        raise StageError(f"the sound is silence: RMS {rms:.1e} of full scale")
    console.print(
        f"{name}: {duration_text(len(samples) / rate)} of sound, RMS {rms:.3f} of full scale", highlight=False
    )
