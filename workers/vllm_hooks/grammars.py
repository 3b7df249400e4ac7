"""``unsupported``: what vLLM knows that its library of grammars passes over in a JSON schema."""

import json

from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features


def unsupported(schema: str) -> str | None:
    """Return why a JSON schema, as text, cannot be kept to though it becomes a grammar; None: it can."""
    if not has_xgrammar_unsupported_json_features(json.loads(schema)):
        return None
    return (
        "it has keywords, or keywords side by side, that are not supported, such as multipleOf, uniqueItems, several "
        "schemas in allOf, or pattern beside maxLength"
    )
