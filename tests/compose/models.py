"""The pipelines of models, on the CPU by compose.cpu.yml, with tiny checkpoints of random weights: ``--with-torch``.

One after another, because the workers of all together want more memory than a small host has. echo_media is the last of
all pipelines and needs no model: it is tried here, where the API serves every pipeline.
"""

import time
from collections.abc import Callable, Sequence

from tests.compose.client import (
    Json,
    animation,
    chat,
    drawing,
    edit,
    every_medium,
    filming,
    glm_drawing,
    png,
    seen,
    spoken,
    spoken_answer,
)
from tests.compose.deployment import FILES, TORCH, options
from tests.compose.trial import PROFILES, Trial

# The builder of each pipeline's checkpoint: a call of Python, with the path that it fills.
FAMILY = "from workers.models.{} import build_tiny_checkpoint as build"
CAUSAL_LM = "from tests.oracles.causal_lm import build_causal_lm as build"
BUILDERS = {
    "chat": CAUSAL_LM,
    "voice": CAUSAL_LM,
    "qwen2_5_vl": FAMILY.format("qwen2_5_vl.tiny_checkpoint"),
    "qwen_image": FAMILY.format("qwen_image.tiny_checkpoint"),
    "qwen_image_edit": FAMILY.format("qwen_image.tiny_edit_checkpoint"),
    "glm_image": FAMILY.format("glm_image.tiny_checkpoint"),
    "wan": FAMILY.format("wan.tiny_checkpoint"),
    "wan_i2v": FAMILY.format("wan.tiny_i2v_checkpoint"),
    "qwen2_5_omni": FAMILY.format("qwen2_5_omni.tiny_checkpoint"),
    "qwen3_omni": FAMILY.format("qwen3_omni.tiny_checkpoint"),
}
JOBS: dict[str, Callable[[Trial], Json]] = {
    "chat": lambda _: chat(),
    "qwen2_5_vl": lambda _: seen(png(96, 64)),
    "voice": lambda trial: spoken_answer(trial.sound),
    "qwen_image": lambda _: drawing(),
    "qwen_image_edit": lambda _: edit(png(96, 64)),
    "glm_image": lambda _: glm_drawing(),
    "wan": lambda _: filming(),
    "wan_i2v": lambda _: animation(png(96, 64)),
    "qwen2_5_omni": lambda _: spoken(),
    "qwen3_omni": lambda _: spoken("qwen3_omni"),
    "echo_media": lambda _: every_medium(),
}
TIMES = 4
KILLED = "qwen2_5_omni"


def models(trial: Trial, pipelines: Sequence[str]) -> None:
    """Jobs of each of these pipelines come back, and one of the workers is killed."""
    deployment = trial.deployment
    with trial.step("tiny checkpoints of every pipeline of models", needed=True) as facts:
        for pipeline, builder in BUILDERS.items():
            deployment.make_checkpoint(pipeline, builder)
        facts["checkpoints"] = len(BUILDERS)
    with trial.step("compose.cpu.yml: the API with every pipeline", needed=True):
        _up(["api", "rescuer"], trial)
    services_by_pipeline = services_of(trial)
    for pipeline in pipelines:
        services = services_by_pipeline[pipeline]
        try:
            with trial.step(f"compose.cpu.yml: {pipeline}") as facts:
                began = time.monotonic()
                _up(services, trial)
                facts |= {"containers": len(services), "up_s": round(time.monotonic() - began, 1)}
                trial.judge(trial.load([JOBS[pipeline](trial)] * TIMES).end(), facts)
            if pipeline == KILLED:
                _killed(trial)
        finally:
            deployment.compose(*options(*TORCH), "--profile", "*", "rm", "--stop", "--force", *services)
    with trial.step("without the models", needed=True):
        deployment.shell("docker compose up --detach --wait")


def services_of(trial: Trial) -> dict[str, list[str]]:
    """Return the workers of each pipeline, by the files."""
    services = trial.deployment.configuration(*options(*TORCH))["services"]
    return {
        pipeline: [name for name, one in services.items() if one.get("profiles") == [pipeline]] for pipeline in JOBS
    }


def _up(services: Sequence[str], trial: Trial) -> None:
    profiles, files = ",".join([*PROFILES, *JOBS]), ":".join([*FILES, *TORCH])
    named = f"COMPOSE_PROFILES={profiles} COMPOSE_FILE={files}"
    trial.deployment.shell(f"{named} docker compose up --detach --wait {' '.join(services)}")


def _killed(trial: Trial) -> None:
    with trial.step("thinker killed") as facts:
        load = trial.load([spoken()] * 8)
        load.wait_until_running(KILLED, "thinker")
        trial.deployment.kill("thinker")
        trial.judge(load.end(), facts)
