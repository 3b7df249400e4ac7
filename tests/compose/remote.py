"""The profile ``remote`` of the trial, before a server of ours that is there already, on the host."""

from tests.compose.client import asked
from tests.compose.deployment import block
from tests.compose.trial import Trial, TrialError

PAGE, HEADING = "compose.md", "Before a server that you run already"
COPY, KEY = "cp deploy/remote/remote.yaml stage_configs/", "printf '%s\\n' \"$KEY\" >secrets/remote_key"


def commands() -> list[str]:
    """Return the docs' lines that give the profile its pipeline and its key. Raises TrialError."""
    lines = block(PAGE, HEADING)
    if lines[:2] != [COPY, KEY] or len(lines) != 3 or "COMPOSE_PROFILES=remote REMOTE_URL=" not in lines[2]:
        raise TrialError(f"docs/operations/{PAGE} puts a queue before a server by other commands: {lines}")
    return lines[:2]


def prepare(trial: Trial) -> None:
    """What docs/operations/compose.md says of a server that is there already; its variables are in .env."""
    deployment = trial.deployment
    with trial.step("a server that is there already, and the profile remote before it", needed=True):
        copy, key = commands()
        deployment.shell(copy)
        pipeline = deployment.directory / "stage_configs" / "remote.yaml"
        pipeline.write_text(pipeline.read_text("utf-8").replace("model: NAME", "model: tiny"), encoding="utf-8")
        deployment.shell(f"KEY={trial.server.key}; {key}")
        trial.server.start(deployment.gateway(), deployment.remote_port)


def away(trial: Trial) -> None:
    """The server goes away under load, and jobs that come meanwhile wait for it."""
    server, deployment = trial.server, trial.deployment
    with trial.step("the server behind remote goes away, and comes back") as facts:
        load = trial.load([asked(number) for number in range(10)])
        load.wait_until_running("remote", "ask")
        server.stop()
        try:
            late = trial.load([asked(number) for number in range(10, 20)])
            late.wait_until_running("remote", "ask")
        finally:
            server.start(deployment.gateway(), deployment.remote_port)
        trial.judge(load.end(), facts)
        trial.judge(late.end(), facts)
        facts |= {"requests_dropped": server.dropped, "answers": dict(server.answers)}
        if server.answers[401]:
            raise TrialError("the worker came without the key")
