"""The family. Light: the API reads it, without torch."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration

__all__ = ["PASTEL"]

PASTEL = Family(
    components={
        None: ComponentDeclaration(
            "diffusion",
            produces=frozenset({"pixels"}),
            parameters="pastel.parameters:PastelParameters",
            implementation="pastel.model:load_pastel",
            resumable=True,
        )
    },
    processors={
        "pastel": ProcessorDeclaration(
            "pastel.processors:PastelProcessor", "diffusion", parameters="pastel.parameters:PastelParameters"
        )
    },
    checkpoint_files=("config.json", "model.safetensors"),
    tiny_checkpoint="pastel.tiny_checkpoint",
)
