"""workers.models.whisper.family: what it names exists, and admission loads none of the heavy packages."""

import subprocess
import sys
from pkgutil import resolve_name

import pytest
from pydantic import ValidationError

from omni_jobs.pipelines.engine_settings import EngineSettings
from omni_jobs.pipelines.parameters import StageParameters
from workers.models.whisper.engine_settings import WhisperEngine
from workers.models.whisper.family import WHISPER, WHISPER_RUNNER
from workers.models.whisper.parameters import LANGUAGES, WhisperParameters

HEAVY = ("numpy", "torch", "transformers", "vllm", "faster_whisper", "ctranslate2", "onnxruntime")


def test_what_the_family_names_exists() -> None:
    assert WHISPER.prompts is not None
    named = [WHISPER.prompts, WHISPER_RUNNER.implementation, *_processors()]
    assert all(isinstance(resolve_name(path), type) for path in named)
    assert issubclass(resolve_name(WHISPER_RUNNER.engine), EngineSettings)
    assert issubclass(resolve_name(str(WHISPER_RUNNER.parameters)), StageParameters)


def _processors() -> list[str]:
    return [each.implementation for each in WHISPER_RUNNER.processors.values()]


def test_admission_loads_no_heavy_package() -> None:
    light = ("family", "parameters", "engine_settings", "prompts")
    imports = ", ".join(f"workers.models.whisper.{name}" for name in light)
    code = f"import sys, {imports}; print(*sorted({set(HEAVY)} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_the_languages_are_those_of_faster_whisper() -> None:
    tokenizer = pytest.importorskip("faster_whisper.tokenizer")
    assert set(tokenizer._LANGUAGE_CODES) == LANGUAGES


@pytest.mark.parametrize(
    "values",
    [
        {"language": "EN"},
        {"language": "english"},
        {"task": "summarize"},
        {"beam_size": 0},
        {"beam_size": 17},
        {"temperature": 0.2},
        {"speech_threshold": 1.0},
        {"prompt": "x" * 1001},
        {"vad": True},
        {"beam_size": "5"},
    ],
)
def test_wrong_parameters_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        WhisperParameters.model_validate(values)


def test_a_temperature_of_0_is_taken() -> None:
    assert WhisperParameters.model_validate({"temperature": 0, "language": "yue"}).language == "yue"


def test_the_compute_type_decides_a_result() -> None:
    assert WhisperEngine().decisive() == WhisperEngine(num_workers=3, cpu_threads=2).decisive()
    assert WhisperEngine(compute_type="float32").decisive() == {"compute_type": "float32"}
