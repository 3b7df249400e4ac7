"""The runner ``ar``: an autoregressive model on vLLM."""

from omni_jobs.pipelines.declarations import ProcessorDeclaration, RunnerDeclaration

_HERE = "workers.runners.ar"

AR = RunnerDeclaration(
    implementation=f"{_HERE}.ar_runner:ARRunner",
    engine=f"{_HERE}.engine_settings:ArEngine",
    engine_check="workers.runners.on_vllm.check_arguments",
    parameters=f"{_HERE}.parameters:ArParameters",
    processors={
        "chat": ProcessorDeclaration(f"{_HERE}.chat_processor:ChatProcessor", "ar", tools=True),
        "chat_of_transcript": ProcessorDeclaration(
            f"{_HERE}.chat_of_transcripts:ChatOfTranscripts", "ar", consumes=frozenset({"text"})
        ),
        "embeds": ProcessorDeclaration(f"{_HERE}.chat_processor:EmbedsProcessor", "ar", consumes=frozenset({"embeds"})),
    },
    packages={"vllm": "pip install 'omni-jobs[worker-cuda]' on a GPU host, 'omni-jobs[worker-cpu]' elsewhere"},
    torch=True,
    token_ids=True,
)
