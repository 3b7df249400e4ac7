"""Offline use: ``OmniLLM`` runs a pipeline's stages in one process, without queue or database."""

from workers.offline.omni_llm import OmniLLM, OmniOutput

__all__ = ["OmniLLM", "OmniOutput"]
