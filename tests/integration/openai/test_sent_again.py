"""What a job's page offers to be copied sends its request again, by curl and by both Python clients."""

import re
import subprocess
import sys
from html import unescape

import pytest

from omni_jobs.client import Client, user_message
from tests.integration.api_server import ApiServer

SNIPPET = re.compile(r'<h3>(curl|Python[^<]*)</h3>\n<div class="copied"><pre tabindex="0">(.*?)</pre>', re.DOTALL)
TEXT = 'it\'s $(rm) `x` "q"\n\\ 你好'


@pytest.mark.parametrize(("modality", "stage"), [("text", "answer"), ("image", "picture")])
def test_each_snippet_makes_the_same_job_again(echo_media: ApiServer, modality: str, stage: str) -> None:
    url = f"http://{echo_media.host}:{echo_media.port}"
    with Client(url) as client:
        sent = {
            "model": "echo_media",
            "messages": [user_message(TEXT)],
            "modalities": [modality],
            "stages": {stage: {"delay_s": 0.01}},
        }
        first = client.wait(client.submit(sent).id)
        snippets = SNIPPET.findall(echo_media.http.get(f"/fragments/jobs/{first.id}/request").text)
        for name, text in snippets:
            program = ["bash", "-c"] if name == "curl" else [sys.executable, "-c"]
            subprocess.run([*program, unescape(text)], check=True, timeout=60, capture_output=True)
        again = [client.wait(job.id) for job in client.list(limit=len(snippets)).jobs]
    assert len({job.id for job in again} - {first.id}) == len(snippets) == 3
    for job in again:
        assert (job.seed, job.modalities, job.made) == (first.seed, first.modalities, first.made)
        assert [each.digest for each in job.artifacts] == [each.digest for each in first.artifacts]
