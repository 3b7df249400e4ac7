"""The runner ``remote``: an OpenAI-compatible server as a stage, such as vLLM's, vLLM-Omni's, SGLang's, llama.cpp's."""

from omni_jobs.pipelines.declarations import ProcessorDeclaration, RunnerDeclaration

_HERE = "workers.runners.remote"
_CHECKS = f"{_HERE}.request_checks"

REMOTE = RunnerDeclaration(
    implementation=f"{_HERE}.remote_runner:RemoteRunner",
    engine=f"{_HERE}.engine_settings:RemoteEngine",
    parameters=f"{_HERE}.parameters:RemoteParameters",
    processors={
        "remote_chat": ProcessorDeclaration(
            f"{_HERE}.processors:RemoteChatProcessor", "remote", check=f"{_CHECKS}:check_chat", tools=True
        ),
        "remote_text": ProcessorDeclaration(
            f"{_HERE}.processors:RemoteTextProcessor",
            "remote",
            may_consume=frozenset({"text"}),
            check=f"{_CHECKS}:check_text",
        ),
        "remote_transcription": ProcessorDeclaration(
            f"{_HERE}.processors:RemoteTranscriptionProcessor",
            "remote",
            may_consume=frozenset({"waveform"}),
            check=f"{_CHECKS}:check_transcription",
        ),
    },
    produces=frozenset({"text", "waveform", "pixels"}),
)
