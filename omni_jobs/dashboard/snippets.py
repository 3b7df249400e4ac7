"""``snippets_of``: what a person copies to send a job's request again: for curl, OpenAI's client, and ours."""

import json
from collections.abc import Mapping
from pprint import pformat
from typing import Any, Final, NamedTuple

_SENT: Final = {
    **{name: name for name in ("model", "messages", "modalities", "audio", "image", "video")},
    "parameters": "stages",  # as a client names it
    **{name: name for name in ("previews", "tools", "tool_choice", "parallel_tool_calls")},
}
_MEDIUM: Final = "DATA_URL"
_KEY: Final = "$OMNI_JOBS_API_KEY"


class Snippet(NamedTuple):
    """A text to be copied."""

    name: str
    text: str


def snippets_of(request: Mapping[str, Any], url: str, *, has_keys: bool) -> list[Snippet]:
    """Return the snippets for a request as it was admitted, at the server with this URL.

    In place of a medium stands ``DATA_URL``, because the request names those that are stored.
    """
    body = {name: _with_placeholders(request[known]) for known, name in _SENT.items() if request.get(known)}
    shell = json.dumps(body, ensure_ascii=False, indent=2).replace("'", "'\\''")
    key = f' \\\n  -H "Authorization: Bearer {_KEY}"' if has_keys else ""
    curl = f"curl {url}/v1/jobs{key} \\\n  -H 'Content-Type: application/json' -d '{shell}'"
    python = pformat(body, sort_dicts=False, width=100)
    given = 'api_key=os.environ["OMNI_JOBS_API_KEY"]' if has_keys else ""
    imports = "import os\n\n" if has_keys else ""
    ours = (
        f"{imports}from omni_jobs.client import Client\n\n"
        f"with Client({url!r}{', ' + given if given else ''}) as client:\n"
        f"    job = client.wait(client.submit({_indented(python)}).id)\n    print(job.result)"
    )
    stock = (
        f"{imports}from openai import OpenAI\n\n"
        f"client = OpenAI(base_url={url + '/v1'!r}, {given or 'api_key=' + repr('none')})\n"
        f"answer = client.chat.completions.create(\n    model={body.get('model')!r},\n"
        f"    messages={_indented(pformat(body.get('messages', []), sort_dicts=False, width=96))},\n)\n"
        "print(answer.choices[0].message.content)"
    )
    return [Snippet("curl", curl), Snippet("Python, ours", ours), Snippet("Python, OpenAI's client", stock)]


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def _with_placeholders(value: Any) -> Any:
    """Return JSON in which each stored medium is a part of the form that clients send."""
    match value:
        case {"type": str(kind), "media": int()}:
            name = {"audio": "input_audio", "image": "image_url", "video": "video_url"}.get(kind, kind)
            return {"type": name, name: {"data" if kind == "audio" else "url": _MEDIUM}}
        case dict():
            return {name: _with_placeholders(inner) for name, inner in value.items()}
        case list():
            return [_with_placeholders(inner) for inner in value]
    return value
