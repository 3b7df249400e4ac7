"""The runner ``echo``: stages without a model, for tests and benchmarks of everything but the models."""

from omni_jobs.pipelines.declarations import ProcessorDeclaration, RunnerDeclaration

_HERE = "workers.runners.echo"
_CHECKS = f"{_HERE}.request_checks"
_PARAMETERS = f"{_HERE}.parameters"
_TEXT, _SOUND, _PICTURES = frozenset({"text"}), frozenset({"waveform"}), frozenset({"pixels"})

ECHO = RunnerDeclaration(
    implementation=f"{_HERE}.echo_runner:EchoRunner",
    parameters=f"{_PARAMETERS}:EchoParameters",
    processors={
        "echo": ProcessorDeclaration(
            f"{_HERE}.echo_processor:EchoProcessor",
            "echo",
            may_consume=frozenset({"bytes"}),
            produces=_TEXT | frozenset({"bytes"}),
        ),
        "answer": ProcessorDeclaration(
            f"{_HERE}.answer:AnswerProcessor",
            "echo",
            parameters=f"{_PARAMETERS}:AnswerParameters",
            produces=_TEXT,
            blocking=True,
        ),
        "tone": ProcessorDeclaration(
            f"{_HERE}.tone:ToneProcessor",
            "echo",
            parameters=f"{_PARAMETERS}:ToneParameters",
            produces=_SOUND,
            check=f"{_CHECKS}:check_tone",
        ),
        "bars": ProcessorDeclaration(
            f"{_HERE}.bars:BarsProcessor",
            "echo",
            parameters=f"{_PARAMETERS}:BarsParameters",
            produces=_PICTURES,
            blocking=True,
            check=f"{_CHECKS}:check_bars",
        ),
        "moving_bars": ProcessorDeclaration(
            f"{_HERE}.bars:MovingBarsProcessor",
            "echo",
            parameters=f"{_PARAMETERS}:MovingBarsParameters",
            produces=_PICTURES,
            blocking=True,
            check=f"{_CHECKS}:check_moving_bars",
        ),
    },
    produces=frozenset({"bytes"}) | _TEXT | _SOUND | _PICTURES,
    blocking_prompts=False,
)
