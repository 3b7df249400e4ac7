"""``Over``: how far back a page looks, as the address bar says it."""

from enum import StrEnum
from typing import Final

_DAY_S: Final = 86_400


class Over(StrEnum):
    """A time until now."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    @property
    def seconds(self) -> int:
        """How long it is."""
        return {Over.HOUR: 3600, Over.DAY: _DAY_S, Over.WEEK: 7 * _DAY_S, Over.MONTH: 30 * _DAY_S}[self]
