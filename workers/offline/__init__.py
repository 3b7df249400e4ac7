"""Offline use: ``OmniLLM`` runs a pipeline from one process, without queue or database; each model has its own."""

from workers.offline.omni_llm import OmniLLM, OmniOutput

__all__ = ["OmniLLM", "OmniOutput"]
