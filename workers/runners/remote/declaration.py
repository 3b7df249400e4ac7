"""The runner ``remote``: an OpenAI-compatible server as a stage, such as vLLM's, vLLM-Omni's, SGLang's, llama.cpp's."""

from omni_jobs.pipelines.declarations import ProcessorDeclaration, RunnerDeclaration

_HERE = "workers.runners.remote"

REMOTE = RunnerDeclaration(
    implementation=f"{_HERE}.remote_runner:RemoteRunner",
    engine=f"{_HERE}.engine_settings:RemoteEngine",
    parameters=f"{_HERE}.parameters:RemoteParameters",
    processors={
        "remote_chat": ProcessorDeclaration(f"{_HERE}.chat_processor:RemoteChatProcessor", "remote"),
        "remote_text": ProcessorDeclaration(
            f"{_HERE}.text_processor:RemoteTextProcessor", "remote", may_consume=frozenset({"text"})
        ),
        "remote_transcription": ProcessorDeclaration(
            f"{_HERE}.transcription_processor:RemoteTranscriptionProcessor",
            "remote",
            may_consume=frozenset({"waveform"}),
        ),
    },
    produces=frozenset({"text", "waveform", "pixels"}),
)
