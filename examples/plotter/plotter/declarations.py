"""What the package adds: a runner, the flow that it produces, and the output that is made of it. Light."""

from omni_jobs.pipelines.declarations import ProcessorDeclaration, RunnerDeclaration
from omni_jobs.pipelines.flows import Flow, TensorField, ValueField
from omni_jobs.pipelines.outputs import Output, OutputFormat

__all__ = ["CURVE", "PLOTTER", "SVG"]

PLOTTER = RunnerDeclaration(
    implementation="plotter.runner:Plotter",
    engine="plotter.settings:PlotterEngine",
    parameters="plotter.settings:PlotterParameters",
    processors={"plotter": ProcessorDeclaration("plotter.processors:PlotterProcessor", "plotter")},
    produces=frozenset({"curve"}),
    packages={"numpy": "pip install numpy"},
)

CURVE = Flow(
    "curve",
    tensors={"points": TensorField(frozenset({"F32"}), (("points", 2),))},
    values={"title": ValueField(str), "count": ValueField(int, at_least=2, size="points")},
    content="curve",
)

SVG = Output(
    "svg",
    flow="curve",
    formats=(OutputFormat("svg", suffix=".svg", media_type="image/svg+xml"),),
    encoder="plotter.svg:encode_svg",
    artifact="drawing",
)
