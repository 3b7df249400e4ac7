"""Commands without the rights of root, before which no file is closed."""

import os
import shutil

from tests.services import missing

_DROPS = ["setpriv", "--bounding-set=-all", "--"]


def without_rights() -> list[str]:
    """Return the words before a command that take root's rights away; none for another user. Skips without setpriv."""
    if os.geteuid() != 0:
        return []
    if shutil.which(_DROPS[0]) is None:
        missing("setpriv, without which root reads each file")
    return _DROPS
