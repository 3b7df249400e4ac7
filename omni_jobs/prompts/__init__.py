"""Turn a job's messages into a prompt, and count its tokens, with one renderer per family.

load_renderer(family, directory)          load the renderer of a checkpoint
check_renderers(pipeline)                 import the renderers of a pipeline's families
families_of(directory)                    list the families that a checkpoint is of
kind_of(directory)                        tell what a checkpoint's files call it
checkpoint_of(pipeline, stage, models)    find a stage's checkpoint on this host
renderer_errors(pipeline)                 turn the errors of a renderer of another package into ours
Renderers(settings).of(pipeline)          return the renderer of a pipeline on this host

Admission counts tokens and a worker renders the prompt with the same renderer, so both agree. A renderer
imports neither torch nor transformers.
"""

from omni_jobs.prompts.renderers import (
    HANGS_S,
    ParametersRenderer,
    PromptRenderer,
    Renderers,
    check_renderers,
    checkpoint_of,
    families_of,
    kind_of,
    load_renderer,
    renderer_errors,
)

__all__ = [
    "HANGS_S",
    "ParametersRenderer",
    "PromptRenderer",
    "Renderers",
    "check_renderers",
    "checkpoint_of",
    "families_of",
    "kind_of",
    "load_renderer",
    "renderer_errors",
]
