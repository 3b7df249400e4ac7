"""The runner ``echo``: a stage without a model, for tests and benchmarks of everything but the models."""

from omni_jobs.pipelines.declarations import ProcessorDeclaration, RunnerDeclaration

_HERE = "workers.runners.echo"

ECHO = RunnerDeclaration(
    implementation=f"{_HERE}.echo_runner:EchoRunner",
    parameters=f"{_HERE}.parameters:EchoParameters",
    processors={
        "echo": ProcessorDeclaration(f"{_HERE}.echo_processor:EchoProcessor", "echo", may_consume=frozenset({"bytes"}))
    },
    produces=frozenset({"bytes", "text"}),
    blocking_prompts=False,
)
