"""docs/observability.md names each metric, its kind, its labels and its processes; no label tells of a tenant."""

import re
from pathlib import Path

import pytest

from omni_jobs.metrics.api_metrics import ApiMetrics
from omni_jobs.metrics.process_metrics import ProcessMetrics
from omni_jobs.metrics.rescuer_metrics import RescuerMetrics
from omni_jobs.metrics.worker_metrics import WorkerMetrics

TEXT = (Path(__file__).parents[3] / "docs" / "observability.md").read_text(encoding="utf-8")
LABELS = {"kind", "version", "outcome", "status", "code", "pipeline", "stage", "result", "direction", "what"}
"""What a label may be: each has few values, and none tells of a tenant, a job, a worker or a key."""
ENDS = {"counter": "_total", "gauge": "", "histogram": "", "info": "_info"}


def of_process(metrics: ProcessMetrics) -> dict[str, tuple[str, set[str]]]:
    """The kind and labels of each metric of ours, by name as it is shown."""
    families = [family for family in metrics.registry.collect() if family.name.startswith("omni_jobs_")]
    assert len(families) > 5
    collectors = metrics.registry._names_to_collectors
    labels = {each.name: set(getattr(collectors.get(each.name, each), "_labelnames", ())) for each in families}
    labels["omni_jobs_process"] = {"kind", "version"}
    return {
        family.name + ENDS[family.type]: (family.type.replace("info", "gauge"), labels[family.name])
        for family in families
    }


def documented() -> dict[str, tuple[str, set[str], str]]:
    rows = re.findall(r"^\| `(omni_jobs_\w+)` \| (\w+) \| (.*?) ?\| (\w+) \| .+ \|$", TEXT, re.MULTILINE)
    assert len(rows) == len({name for name, *_ in rows})
    return {name: (kind, set(re.findall(r"`(\w+)`", labels)), where) for name, kind, labels, where in rows}


PROCESSES = {"API": ApiMetrics, "worker": lambda: WorkerMetrics("echo", "1", "first", 8), "rescuer": RescuerMetrics}


@pytest.mark.parametrize("process", PROCESSES)
def test_the_table_has_each_metric_of_a_process_and_no_other(process: str) -> None:
    shown = {name: (kind, labels) for name, (kind, labels, where) in documented().items() if where in ("all", process)}
    assert of_process(PROCESSES[process]()) == shown


def test_no_label_is_of_a_kind_that_nobody_has_allowed() -> None:
    labels = set().union(*(labels for _, labels, _ in documented().values()))
    assert labels == LABELS
