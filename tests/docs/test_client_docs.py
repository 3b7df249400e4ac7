"""What docs/client.md says of the clients and the commands must be so. Its Python runs in tests/integration/stack."""

import inspect
import re

from omni_jobs.cli import Exit
from omni_jobs.client.calls import Calls
from omni_jobs.client.repeats import LONGEST_RETRY_AFTER_S, PAUSES_S
from tests.docs.pages import page

CLIENT = page("client.md")


def test_the_table_names_every_method_with_its_parameters() -> None:
    cells = "\n".join(re.findall(r"^\| (`\w+\(.*?) \|", CLIENT, re.MULTILINE))
    shown = dict(re.findall(r"`(\w+)\((.*?)\)`", cells))
    calls = {name: call for name, call in vars(Calls).items() if inspect.isfunction(call) and name[0] != "_"}
    assert set(shown) == set(calls)
    for name, parameters in shown.items():
        if parameters != "…":
            names = [each.strip().removesuffix("=") for each in parameters.split(",") if each.strip()]
            assert names == list(inspect.signature(calls[name]).parameters)[1:], name


def test_the_exit_codes_are_those_of_the_commands() -> None:
    shown = {int(code): meaning for code, meaning in re.findall(r"^\| (\d) \| (.*?) \|", CLIENT, re.MULTILINE)}
    assert set(shown) == {Exit.FAILED, Exit.NOT_FOUND, Exit.TIMEOUT, Exit.CANCELLED, Exit.EXPIRED}
    assert "cancelled" in shown[Exit.CANCELLED]
    assert "expired" in shown[Exit.EXPIRED]


def test_the_pauses_are_the_client_s() -> None:
    *first, last = (f"{pause:g}" for pause in PAUSES_S)
    assert f"after about {', '.join(first)} and {last} s" in CLIENT
    assert f"If it asks for more than {LONGEST_RETRY_AFTER_S} s" in CLIENT
