"""``LoneTokenizer``: a tokenizer of Transformers in a folder that holds no model."""

from vllm.tokenizers.hf import CachedHfTokenizer


class LoneTokenizer(CachedHfTokenizer):
    """vLLM's tokenizer of Transformers by another name.

    Before vLLM makes a ``CachedHfTokenizer``, it reads the config.json of a model beside it. Where there is none, each
    process of an engine logs two errors and waits 2 seconds between them.
    """
