"""``snippets_of``: what a person copies to send a job's request again: for curl, OpenAI's client, and ours."""

import json
from collections.abc import Mapping
from pprint import pformat
from typing import Any, Final, NamedTuple

_SENT: Final = {
    **{name: name for name in ("model", "messages", "modalities", "audio", "image", "video")},
    "parameters": "stages",  # as a client names it
    **{name: name for name in ("return_token_ids", "previews", "tools", "tool_choice", "parallel_tool_calls")},
}
_NOT_OPENAIS: Final = ("modalities", "stages", "return_token_ids", "previews")
_MEDIUM: Final = "DATA_URL"
_KEY: Final = "$OMNI_JOBS_API_KEY"


class Snippet(NamedTuple):
    """A text to be copied."""

    name: str
    text: str


def snippets_of(request: Mapping[str, Any], seed: int, url: str, *, has_keys: bool) -> list[Snippet]:
    """Return the snippets for a request as it was admitted and its job's seed, at the server with this URL.

    In place of a medium stands ``DATA_URL``, because the request names those that are stored.
    """
    body = {name: _with_placeholders(request[known]) for known, name in _SENT.items() if request.get(known)}
    body["seed"] = seed
    given = 'api_key=os.environ["OMNI_JOBS_API_KEY"]' if has_keys else ""
    imports = "import os\n\n" if has_keys else ""
    ours = (
        f"{imports}from omni_jobs.client import Client\n\n"
        f"with Client({url!r}{', ' + given if given else ''}) as client:\n"
        f"    job = client.wait(client.submit({_python(body)}).id)\n    print(job.result)"
    )
    stock = (
        f"{imports}from openai import OpenAI\n\n"
        f"client = OpenAI(base_url={url + '/v1'!r}, {given or 'api_key=' + repr('none')})\n{_by_stock_client(body)}"
    )
    return [
        Snippet("curl", _curl(body, url, has_keys=has_keys)),
        Snippet("Python, ours", ours),
        Snippet("Python, OpenAI's client", stock),
    ]


def _curl(body: Mapping[str, Any], url: str, *, has_keys: bool) -> str:
    shell = json.dumps(body, ensure_ascii=False, indent=2).replace("'", "'\\''")
    key = f' \\\n  -H "Authorization: Bearer {_KEY}"' if has_keys else ""
    return f"curl {url}/v1/jobs{key} \\\n  -H 'Content-Type: application/json' -d '{shell}'"


def _by_stock_client(body: Mapping[str, Any]) -> str:
    """Return the call of OpenAI's client: a chat completion of what answers with text; else the job, by its JSON."""
    if body.get("modalities") != ["text"]:
        return f'print(client.post("/jobs", cast_to=object, body={_python(body)}))'
    taken = {name: value for name, value in body.items() if name not in _NOT_OPENAIS}
    if "stages" in body:
        taken["extra_body"] = {"stages": body["stages"]}
    lines = "".join(f"    {name}={_python(value)},\n" for name, value in taken.items())
    answer = "message" if "tools" in body else "message.content"
    return f"answer = client.chat.completions.create(\n{lines})\nprint(answer.choices[0].{answer})"


def _python(value: Any) -> str:
    return _indented(pformat(value, sort_dicts=False, width=100))


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
