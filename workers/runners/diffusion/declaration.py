"""The runner ``diffusion``: a model that turns noise into its output in steps, in a light engine of our own."""

from omni_jobs.pipelines.declarations import RunnerDeclaration

_HERE = "workers.runners.diffusion"

DIFFUSION = RunnerDeclaration(
    implementation=f"{_HERE}.engine_process:EngineProcess",
    engine=f"{_HERE}.engine_settings:DiffusionEngine",
    packages={"torch": "pip install 'omni-jobs[worker-cuda]' on a GPU host, 'omni-jobs[worker-cpu]' elsewhere"},
    torch=True,
)
