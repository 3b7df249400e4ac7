"""Every command of every shell block of the docs is understood by a reader of tests.docs.command_readers.

A program that none reads fails here, so a new command comes with its reader.
"""

import re
import subprocess
from collections.abc import Sequence

import pytest

from tests.docs.command_readers import READERS, check_variables, read, reader_of
from tests.docs.pages import PAGES
from tests.docs.shell import Command, commands, shell_blocks, split

COMMANDS = commands()
RULE = (
    "iptables -I DOCKER-USER -i eth0 ! -s 10.0.0.0/24 -p tcp -m conntrack --ctorigdstport {} --ctdir ORIGINAL -j DROP"
)
OTHER_LANGUAGES = {"", "json", "mermaid", "nginx", "python", "sql", "toml", "yaml"}


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) >= 300
    assert {reader_of(each.words) for each in COMMANDS} >= {READERS[name] for name in ("celery", "helm", "systemctl")}


def test_a_block_says_whether_a_shell_reads_it() -> None:
    """One of no language shows what is read or written, so it begins with no program that the docs use."""
    languages = re.findall(r"^ *```(\w*)\n(.*?)^ *```", "\n".join(PAGES.values()), re.DOTALL | re.MULTILINE)
    shown = sum(len(shell_blocks(text)) for text in PAGES.values())
    assert shown == sum(language == "bash" for language, _ in languages)
    assert {language for language, _ in languages} - {"bash"} <= OTHER_LANGUAGES
    for language, block in languages:
        assert language or block.split()[0] not in READERS, block


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if shell_blocks(text)])
def test_a_shell_reads_the_blocks(name: str) -> None:
    for block in shell_blocks(PAGES[name]):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), block


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_is_understood(command: Command) -> None:
    understand(command.variables, command.words)


@pytest.mark.parametrize(
    "line",
    [
        "celery -A workers.app inspect activ",
        "celery -A workers.app worker --no-such",
        "curl -s localhost:8000/v1/no-such",
        "curl -s 'localhost:8000/v1/usage?of=2026-01-01'",
        "cp deploy/no-such /etc",
        "docker compose exec no-such omni-jobs status",
        "docker compose exec api omni-jobs no-such",
        "docker compose up --detatch",
        "docker compose --env-file .env --env-file deploy/cards/no-such.env up",
        "helm install --namespace jobs --values deploy/kubernetes/values/no-such.yaml omni deploy/kubernetes/omni-jobs",
        "helm upgrade --namespace jobs --values values.yaml other deploy/kubernetes/omni-jobs",
        RULE.format(5431),
        "kubectl create secret generic --namespace jobs omni-jobs-other --from-file=secrets/database_url",
        "kubectl create secret generic --namespace jobs omni-jobs-api --from-file=secrets/owner_url",
        "kubectl exec --namespace jobs deployment/omni-other -- omni-jobs status",
        "NO_SUCH=1 omni-jobs status",
        "omni-jobs submit Hello --no-such",
        "pip install 'omni-jobs[no-such]'",
        "pip install 'flower>=3'",
        "pg_dump --no-such omni_jobs",
        "python -m benchmarks.no_such",
        "python -m benchmarks.scaling --no-such",
        "scripts/audit --no-such",
        "scripts/no-such",
        "systemctl enable --now omni-jobs-other",
        "systemctl enable --now omni-jobs-worker@other.stage-1",
        "wget https://example.com",
    ],
)
def test_what_is_wrong_is_seen(line: str) -> None:
    ((variables, words),) = split(line)
    with pytest.raises(Exception):  # noqa: B017, PT011 - each program's parser has an error of its own
        understand(variables, words)


def understand(variables: Sequence[tuple[str, str]], words: Sequence[str]) -> None:
    check_variables(variables)
    read(words)
