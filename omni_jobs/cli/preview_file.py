"""``PreviewFile``: the newest preview of a job that runs, as a file for whoever waits for it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from omni_jobs.files import new_file

if TYPE_CHECKING:
    from pathlib import Path

    from omni_jobs.views import JobView

_JPEG = "data:image/jpeg;base64,"


class PreviewFile:
    """``preview.jpeg`` in a directory, written anew with each preview of a job, and gone once the job is completed."""

    def __init__(self, directory: Path) -> None:
        """Write nothing yet; the directory is made for the first preview."""
        self.path = directory / "preview.jpeg"
        self._shown: str | None = None  # the preview in the file, as the job's view has it

    def update(self, job: JobView) -> bool:
        """Write the job's newest preview if the file has another; return whether the file is new.

        What is no JPEG is passed over. Raises OSError.
        """
        found = [stage.progress.picture for stage in job.stages if stage.progress and stage.progress.picture]
        if not found or found[-1] == self._shown or not found[-1].startswith(_JPEG):
            return False
        try:
            data = base64.b64decode(found[-1].removeprefix(_JPEG), validate=True)
        except ValueError:
            return False
        is_new, self._shown = self._shown is None, found[-1]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(self.path) as file:
            file.write(data)
        return is_new

    def remove(self) -> None:
        """Delete the file if there is one, because the finished picture takes its place."""
        if self._shown is not None:
            self.path.unlink(missing_ok=True)
