"""The runner ``pooling``: an encoder or a language model on vLLM that gives a row for each token of its prompt."""

from omni_jobs.pipelines.declarations import ProcessorDeclaration, RunnerDeclaration

_HERE = "workers.runners.pooling"

POOLING = RunnerDeclaration(
    implementation=f"{_HERE}.pooling_runner:PoolingRunner",
    engine=f"{_HERE}.engine_settings:PoolingEngine",
    engine_check="workers.runners.on_vllm.check_arguments",
    parameters=f"{_HERE}.parameters:PoolingParameters",
    processors={"token_embeds": ProcessorDeclaration(f"{_HERE}.token_embeds:TokenEmbedsProcessor", "pooling")},
    packages={"vllm": "pip install 'omni-jobs[worker-cuda]' on a GPU host, 'omni-jobs[worker-cpu]' elsewhere"},
    torch=True,
)
