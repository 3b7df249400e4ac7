"""The pipelines of a chaos run: their files, and the versions of echo, each in a file of its own beside the others."""

import os
from pathlib import Path

__all__ = ["ASKING", "ECHO", "FILM", "MAX_PAYLOAD_BYTES", "MEDIA", "OTHER_VERSION", "PipelineFiles"]

MAX_PAYLOAD_BYTES = 2_000_000
OTHER_VERSION = "0"  # of the files that nobody but a single worker has
ECHO = "echo"  # a pipeline of two stages that echo
ASKING = "asking"  # a pipeline of one remote stage, whose server echoes
_ASKING = """
name: asking
version: "1"
stages:
  answer:
    kind: remote
    processor: remote_chat
    produces: text
    slots: 8
    time_limit_s: 60
    retries: {worker_lost: 100, fenced: 100, storage: 100}
    engine: {server: echoing, model: echo, endpoint: chat, max_answer_bytes: 1048576}
outputs:
  text: {stage: answer}
"""
MEDIA, FILM = "media", "film"  # a pipeline of two stages: one answers while its text grows, the other makes a video
_MEDIA = """
name: media
version: "1"
stages:
  reply:
    kind: echo
    processor: answer
    produces: text
    slots: 16
    time_limit_s: 60
    retries: {worker_lost: 100, fenced: 100, storage: 100}
  film:
    kind: echo
    processor: moving_bars
    produces: pixels
    slots: 2
    time_limit_s: 60
    retries: {worker_lost: 100, fenced: 100, storage: 100}
outputs:
  text: {stage: reply}
  video: {stage: film}
"""
_STAGE = """
  {name}:
    kind: echo
    processor: echo
    inputs: {inputs}
    produces: {produces}
    slots: 16
    slots_for_high: 1
    time_limit_s: 60
    max_payload_bytes: {max_payload_bytes}
    retries: {{worker_lost: 100, fenced: 100, storage: 100}}
"""


class PipelineFiles:
    """The stage configs of a run: a directory of all versions, and one in which each pipeline has another file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "stage_configs"
        self.other = directory / "other_configs"
        self._newest = 1  # version of echo
        for folder in (self.directory, self.other):
            folder.mkdir(parents=True)
        for name, config in ((ECHO, _echo("1")), (ASKING, _ASKING), (MEDIA, _MEDIA)):
            (self.directory / f"{name}.yaml").write_text(config)
            (self.other / f"{name}.yaml").write_text(config.replace('version: "1"', f'version: "{OTHER_VERSION}"'))

    def version(self, pipeline: str) -> str:
        """The newest version of a pipeline that has a file."""
        return str(self._newest) if pipeline == ECHO else "1"

    def write_next(self) -> str:
        """Put the file of echo's next version beside the others, which stay; return the version."""
        version = str(self._newest + 1)
        written = self.directory / f"{ECHO}-{version}.yaml.new"
        written.write_text(_echo(version))
        os.replace(written, written.with_suffix(""))  # whoever starts meanwhile reads it whole or not at all
        self._newest += 1
        return version


def _echo(version: str) -> str:
    """Two stages. Many retries: the faults kill workers far more often than any fleet's owner would bear."""
    first = _STAGE.format(name="first", inputs="{}", produces="bytes", max_payload_bytes=MAX_PAYLOAD_BYTES)
    second = _STAGE.format(name="second", inputs="{first: bytes}", produces="text", max_payload_bytes=MAX_PAYLOAD_BYTES)
    return f'name: echo\nversion: "{version}"\nstages:{first}{second}\noutputs:\n  text: {{stage: second}}\n'
