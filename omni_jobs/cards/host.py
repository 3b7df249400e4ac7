"""The graphics cards of this host, as their driver tells of them."""

import shutil
import subprocess
from typing import NamedTuple

from omni_jobs.errors import ConfigError

_ASKED = "index,name,driver_version,memory.total,memory.free"
_ANSWER_S = 20.0  # nvidia-smi loads the driver where no process keeps it


class Card(NamedTuple):
    """A graphics card, as its driver tells of it."""

    number: int
    name: str
    driver: str
    total_bytes: int
    free_bytes: int


def cards_of_host() -> list[Card]:
    """Return this host's graphics cards; none where there is no driver. Raises ConfigError if the driver fails."""
    if (program := shutil.which("nvidia-smi")) is None:
        return []
    command = [program, f"--query-gpu={_ASKED}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout
        return [_card(line) for line in told.splitlines() if line.strip()]
    except subprocess.CalledProcessError as error:
        why = (error.stdout or error.stderr).strip().partition("\n")[0]
        raise ConfigError(f"nvidia-smi fails: {why}", field="device") from error
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise ConfigError(f"nvidia-smi fails: {error}", field="device") from error


def _card(line: str) -> Card:
    index, name, driver, total, free = (part.strip() for part in line.split(","))
    return Card(int(index), name, driver, int(total) << 20, int(free) << 20)
