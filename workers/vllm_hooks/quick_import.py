"""Imports vLLM's engine without garbage collection: the collector would search half a million new objects for garbage
again and again, which is a fifth of the import's time.

``engine`` imports this module first. The process of an engine imports ``engine`` first, so both sides of a start gain.
"""

import gc

_collects = gc.isenabled()
gc.disable()
try:
    import vllm.v1.engine.async_llm
    import vllm.v1.engine.core  # noqa: F401
finally:
    if _collects:
        gc.enable()
