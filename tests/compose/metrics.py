"""The act of the trial with compose.metrics.yml: Prometheus reads every process of ours, and answers the dashboard.

Grafana itself is not started, because nothing in reach has it where there is no registry of images: Debian has no such
package, and npm and PyPI have clients of its API alone. What it would ask is asked here instead: Prometheus, under the
name in its data source, and each query of its dashboard.
"""

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from tests.compose.deployment import Deployment, options
from tests.compose.trial import HEALTHY_S, STAGES, Trial, TrialError

FILE = "compose.metrics.yml"
ANSWER_S = 10.0
# The panels that show something as soon as Prometheus has read the processes once: a rate takes two readings.
FULL = {
    "Waiting",
    "Running",
    "Running, of slots",
    "Workers",
    "Processes that answer",
    "Memory",
}


def metrics(trial: Trial) -> None:
    """Prometheus runs, and Grafana could."""
    deployment, files = trial.deployment, options(FILE)
    try:
        with trial.step(f"{FILE}: Prometheus finds every process") as facts:
            deployment.compose(*files, "up", "--detach", "--wait", "--no-deps", "prometheus")
            _all_processes(deployment, facts)
        with trial.step(f"{FILE}: Prometheus answers what Grafana would ask") as facts:
            _data_source(deployment)
            _dashboard(deployment, facts)
    finally:
        deployment.compose(*files, "rm", "--stop", "--force", "prometheus")


def _all_processes(deployment: Deployment, facts: dict[str, Any]) -> None:
    expected = len([one for one in deployment.containers() if one.service in {*STAGES, "api", "rescuer"}])
    until = time.monotonic() + HEALTHY_S
    while (found := _number(deployment, "sum(up)")) != expected:
        if time.monotonic() > until:
            raise TrialError(f"Prometheus has {found} processes up of {expected}")
        time.sleep(1.0)
    facts["processes"] = expected
    if (ended := _number(deployment, 'sum(omni_jobs_stage_ended_total{result="completed"})')) == 0:
        raise TrialError("no worker has counted a stage run")
    facts["stage_runs"] = ended


def _data_source(deployment: Deployment) -> None:
    """A container of the network reaches Prometheus by the URL that Grafana is told."""
    source = deployment.configuration(*options(FILE))["configs"]["grafana_source"]["content"]
    (url,) = re.findall(r'url: "(http://[^"]+)"', source)
    program = f"import urllib.request; urllib.request.urlopen({f'{url}/-/ready'!r}, timeout={ANSWER_S})"
    deployment.compose("exec", "-T", "api", "python", "-c", program)


def _dashboard(deployment: Deployment, facts: dict[str, Any]) -> None:
    """Each query of the dashboard, with the variables as Grafana fills them in: none is refused."""
    dashboard = json.loads((deployment.directory / "deploy" / "grafana" / "omni-jobs.json").read_text("utf-8"))
    filled = {"$pipeline": ".*", "$stage": ".*", "$__rate_interval": "1m"}
    answers = {}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in filled.items():
                query = query.replace(name, value)
            answers[panel["title"], query] = _asked(deployment, query)
    facts["queries"] = len(answers)
    facts["with_data"] = sum(map(bool, answers.values()))
    if empty := FULL - {panel for (panel, _), found in answers.items() if found}:
        raise TrialError(f"Prometheus has nothing for {empty}")


def _number(deployment: Deployment, query: str) -> float:
    """Return Prometheus' answer to a query of one number, 0 where it has none."""
    found = _asked(deployment, query)
    return float(found[0]["value"][1]) if found else 0.0


def _asked(deployment: Deployment, query: str) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{deployment.prometheus_port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            return list(json.load(answer)["data"]["result"])
    except urllib.error.HTTPError as error:
        raise TrialError(f"Prometheus refuses {query}: {error.read()[:500].decode(errors='replace')}") from error
