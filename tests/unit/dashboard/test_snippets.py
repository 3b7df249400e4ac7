"""The snippets send a request again as it was, and quote what stands in it."""

import ast
import json
import shlex

from omni_jobs.dashboard.snippets import snippets_of

TEXT = {"type": "text", "text": 'it\'s $(rm) `x` "q"\n\\'}
REQUEST = {
    "model": "echo",
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": 'it\'s $(rm) `x` "q"\n\\'}, {"type": "audio", "media": 0}],
        }
    ],
    "modalities": ["text"],
    "parameters": {"first": {"delay_s": 1}},
    "kept": {"x": 1},
}


def test_curl_sends_the_request_whatever_stands_in_it() -> None:
    [curl, _, _] = snippets_of(REQUEST, 7, "https://jobs.example.com", has_keys=False)
    words = shlex.split(curl.text.replace("\\\n", " "))
    assert words[:2] == ["curl", "https://jobs.example.com/v1/jobs"]
    sent = json.loads(words[-1])
    assert sent["messages"][0]["content"][0] == TEXT
    assert sent["messages"][0]["content"][1] == {"type": "input_audio", "input_audio": {"data": "DATA_URL"}}
    assert sent["stages"] == {"first": {"delay_s": 1}}
    assert sent["seed"] == 7
    assert "kept" not in sent


def test_python_is_python_and_no_key_stands_in_it() -> None:
    for has_keys in (False, True):
        for snippet in snippets_of(REQUEST, 7, "https://jobs.example.com", has_keys=has_keys)[1:]:
            ast.parse(snippet.text)
            assert ("OMNI_JOBS_API_KEY" in snippet.text) == has_keys
