"""The umask of the tests: none is left to the tests that follow, whoever set it."""

import os

import pytest

_ODD = 0o127


@pytest.fixture(scope="module")
def found() -> list[int]:
    """Stand for a command that serves, which a fixture of a module runs. The umasks that its tests find go here."""
    os.umask(_ODD)
    return []


@pytest.mark.parametrize("_turn", range(2))
def test_a_test_leaves_the_umask_of_the_start_though_a_fixture_of_its_module_set_another(
    found: list[int], _turn: int
) -> None:
    found.append(os.umask(_ODD))
    assert found[0] == _ODD
    assert _ODD not in found[1:]
