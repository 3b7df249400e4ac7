"""``cut_error``: bounds the length of an error's texts before a client gets it, as an answer or in a bulk's answers."""

from collections.abc import Mapping
from typing import Any

from omni_jobs.views import ErrorView

_LONGEST_MESSAGE = 2000  # characters
_LONGEST_FIELD = 400


def cut_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an error that a client may see, of those that ``OmniJobsError.to_dict`` returned.

    The message is cut to 2000 characters and the field's name to 400, because they may quote the client's own text.
    """
    fields = {name: value for name, value in error.items() if name in ErrorView.model_fields}
    fields["message"] = fields["message"][:_LONGEST_MESSAGE]
    if "field" in fields:
        fields["field"] = fields["field"][:_LONGEST_FIELD]
    return fields
