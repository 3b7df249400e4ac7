"""The workers in docker-compose.yml: a service for each stage, its image, its card, its room."""

import os
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from omni_jobs.cli import app
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from tests.packaging.compose_file import COMPOSE, DOCKERFILE, ROOT, mounts, workers
from workers.consumer.command_line import stage_of_queues

DISTRIBUTIONS = {"hibari": "hibari-tts", "faster_whisper": "faster-whisper"}  # packages of other names


def test_one_worker_service_per_stage(services: dict[str, dict[str, Any]], stage_configs: Path) -> None:
    """Of every pipeline that comes with omni-jobs, and of the one to copy, by its profile."""
    commands = [(*service["command"], *service["profiles"]) for service in workers(services).values()]
    assert Counter(commands) == Counter(
        ("omni-jobs", "worker", "--pipeline", pipeline.name, "--stage", stage, pipeline.name)
        for pipeline in load_pipelines(stage_configs).values()
        for stage in pipeline.stages
    )
    without = {name for name, service in services.items() if "profiles" not in service}
    assert without == {"valkey", "postgres", "objects", "bucket", "migrate", "api", "rescuer"}


def test_each_worker_has_the_image_with_its_packages(services: dict[str, dict[str, Any]], stage_configs: Path) -> None:
    """Those that a stage's runner needs are in the lock of its image; only stages on vLLM or torch get a GPU."""
    locks = {"omni-jobs-worker": "worker-cuda", "omni-jobs-worker-cpu": "worker-cpu", "omni-jobs-api": "core"}
    pipelines = load_pipelines(stage_configs)
    for name, service in workers(services).items():
        stage = pipelines.named(service["command"][3]).stage(service["command"][5])
        lock = (ROOT / "locks" / f"{locks[service['image']]}.txt").read_text()
        needed = {DISTRIBUTIONS.get(package, package) for package in stage.runner.packages}
        assert needed <= set(re.findall(r"(?m)^([\w.-]+)==", lock)), name
        assert (service.get("runtime") == "nvidia") == stage.runner.torch, name


def test_a_host_without_a_gpu_builds_no_image_for_one(services: dict[str, dict[str, Any]]) -> None:
    assert services["worker-image"]["image"] == "omni-jobs-worker"
    assert services["worker-cpu-image"]["image"] == "omni-jobs-worker-cpu"
    assert all(services[f"{kind}-image"]["profiles"] == ["images"] for kind in ("worker", "worker-cpu"))


def test_each_worker_has_its_card_and_an_engine_that_takes_a_share_its_share(
    services: dict[str, dict[str, Any]],
) -> None:
    """Which is empty at first: that of the stage config. A share in .env is not for the workers that take none.

    The runtime takes a list of devices (tensor parallel) as one variable; a reservation's device_ids would not.
    """
    pipelines = load_pipelines(ROOT / "stage_configs")
    for name, service in services.items():
        assert "deploy" not in service, name
        assert ("runtime" in service) == (service["image"] == "omni-jobs-worker"), name
        if name not in workers(services):
            continue
        environment = service["environment"]
        if "runtime" not in service:
            assert environment["OMNI_JOBS_DEVICE"] == "cpu"
            continue
        assert environment["OMNI_JOBS_DEVICE"] == "cuda"
        variable = name.upper().replace("-", "_") + "_GPU"
        assert f"${{{variable}:-0}}" in COMPOSE.read_text()
        assert environment["NVIDIA_VISIBLE_DEVICES"] == "0"
        assert mounts(service)[environment["OMNI_JOBS_LOAD_LOCKS_DIR"]] == "load-locks"
        stage = pipelines.named(service["command"][3]).stage(service["command"][5])
        takes_share = getattr(stage.engine_settings, "gpu_memory_utilization", None) is not None
        assert environment.get("OMNI_JOBS_GPU_MEMORY_UTILIZATION") == ("" if takes_share else None), name
        assert (f"${{{variable}_MEMORY:-}}" in COMPOSE.read_text()) == takes_share, name


def test_workers_can_be_scaled(services: dict[str, dict[str, Any]]) -> None:
    """What two containers of one service would share: a hostname (and so a slot), a name, a port of the host."""
    for name, service in workers(services).items():
        assert not {"hostname", "container_name", "ports"} & set(service), name


def test_workers_serve_the_stage_whose_name_they_have(services: dict[str, dict[str, Any]], stage_configs: Path) -> None:
    environment = {name: None for name in os.environ if name.startswith("OMNI_JOBS_")}
    environment["OMNI_JOBS_STAGE_CONFIGS"] = str(stage_configs)
    pipelines = load_pipelines(stage_configs)
    for service in workers(services).values():
        assert service["command"][0] == "omni-jobs"
        result = CliRunner(env=environment).invoke(app, [*service["command"][1:], "--dry-run"])
        assert result.exit_code == 0, result.output
        words = shlex.split(result.output)
        pipeline, stage = stage_of_queues([words[words.index("-Q") + 1]], pipelines)
        assert (pipeline.name, stage) == (service["command"][3], service["command"][5])


def test_each_worker_compiles_into_a_volume_of_its_own(services: dict[str, dict[str, Any]]) -> None:
    volumes = [mounts(service)["/home/omni/.cache"] for service in workers(services).values() if "runtime" in service]
    assert len(set(volumes)) == len(volumes)
    content = DOCKERFILE.read_text()
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"):
        assert re.search(rf"\b{variable}=/home/omni/\.cache/\w+", content), variable


def test_workers_have_time_and_room(services: dict[str, dict[str, Any]]) -> None:
    for service in workers(services).values():
        grace = re.fullmatch(r"(\d+)s", service["stop_grace_period"])
        assert grace is not None
        assert int(grace[1]) > Settings.model_fields["drain_s"].default
        assert service["shm_size"]
        assert service["init"] is True
