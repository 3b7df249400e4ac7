"""Turn a job's messages into a prompt, and count its tokens, with one renderer per architecture.

load_renderer(architecture, directory)   load the renderer of a checkpoint, an entry point of ``omni_jobs.prompts``
architectures_of(directory)              list the architectures that take a checkpoint
Renderers(settings).of(pipeline)         return the renderer of a pipeline on this host

Admission counts tokens and a worker renders the prompt with the same renderer, so both agree. A renderer
imports neither torch nor transformers.
"""

from omni_jobs.prompts.renderers import PromptRenderer, Renderers, architectures_of, load_renderer

__all__ = ["PromptRenderer", "Renderers", "architectures_of", "load_renderer"]
