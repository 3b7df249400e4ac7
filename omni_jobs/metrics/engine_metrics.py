"""``EngineMetrics``: what a worker's engine measures itself, with the labels of the stage."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector

_OF_ENGINES: Final = ("vllm:",)
"""How the names of metrics begin that engines keep in prometheus-client's own registry."""
_DROPPED: Final = "model_name"  # the directory of the checkpoint


class EngineMetrics(Collector):
    """The metrics of this process's engine, under its own names; none without an engine that measures."""

    def __init__(self, pipeline: str, version: str, stage: str) -> None:
        self._labels = {"pipeline": pipeline, "version": version, "stage": stage}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now, each series with the labels of the stage, and without the model."""
        for metric in REGISTRY.collect():
            if metric.name.startswith(_OF_ENGINES):
                metric.samples = [each._replace(labels=self._labelled(each.labels)) for each in metric.samples]
                yield metric

    def _labelled(self, labels: Mapping[str, str]) -> dict[str, str]:
        own = {(f"engine_{name}" if name in self._labels else name): value for name, value in labels.items()}
        own.pop(_DROPPED, None)
        return own | self._labels
