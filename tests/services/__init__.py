"""The real services that tests use, one file each; sessions share one instance."""

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """A service is not there: skip on a laptop, fail in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"CI lacks a service: {reason}", pytrace=False)
    pytest.skip(reason)
