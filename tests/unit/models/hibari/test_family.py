"""workers.models.hibari.family: what it names exists, and admission loads none of the heavy packages."""

import subprocess
import sys
from pkgutil import resolve_name

import pytest
from pydantic import ValidationError

from omni_jobs.pipelines.engine_settings import EngineSettings
from omni_jobs.pipelines.parameters import StageParameters
from workers.models.hibari.engine_settings import HibariEngine
from workers.models.hibari.family import ACOUSTIC_FEATURES, HIBARI, HIBARI_RUNNER
from workers.models.hibari.hibari_prompts import SPECTRA
from workers.models.hibari.parameters import AcousticParameters, VocoderParameters

HEAVY = ("numpy", "torch", "transformers", "vllm", "hibari", "onnxruntime")


def test_what_the_family_names_exists() -> None:
    assert HIBARI.prompts is not None
    processors = [each.implementation for each in HIBARI.processors.values()]
    assert all(isinstance(resolve_name(path), type) for path in [HIBARI.prompts, *processors])
    assert isinstance(resolve_name(HIBARI_RUNNER.implementation), type)
    assert issubclass(resolve_name(HIBARI_RUNNER.engine), EngineSettings)
    assert all(issubclass(resolve_name(str(each.parameters)), StageParameters) for each in HIBARI.components.values())


def test_the_flow_has_the_features_of_the_prompt() -> None:
    assert {*SPECTRA, "f0", "sentences"} == set(ACOUSTIC_FEATURES.tensors)


def test_admission_loads_no_heavy_package() -> None:
    light = ("family", "parameters", "engine_settings", "prompts")
    imports = ", ".join(f"workers.models.hibari.{name}" for name in light)
    code = f"import sys, {imports}; print(*sorted({set(HEAVY)} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


@pytest.mark.parametrize("speed", [0.49, 2.01, "1", float("nan"), None])
def test_a_wrong_speed_is_refused(speed: object) -> None:
    with pytest.raises(ValidationError):
        AcousticParameters.model_validate({"speed": speed})


@pytest.mark.parametrize("values", [{"pause_s": -0.1}, {"pause_s": 5.1}, {"speed": 1.0}])
def test_wrong_parameters_of_the_vocoder_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        VocoderParameters.model_validate(values)


def test_no_setting_changes_what_is_said() -> None:
    assert HibariEngine(threads=2, num_workers=4, max_speech_s=10).decisive() == {}
