"""The Python client of the HTTP API: typed, synchronous, safe to retry.

    client = Client("http://127.0.0.1:8000")
    job = client.submit({"model": "qwen2_5_omni", "messages": [user_message("Hello")], "modalities": ["text", "audio"]})
    job = client.wait(job.id, timeout=600)
    print(job.result["text"])
    client.save(job, Path("out"))   # result.json, text.txt, audio.wav

A call is repeated a few times while the server does not answer or has too many jobs waiting. A submit carries an
idempotency key, so no repetition makes a second job. The server's errors are raised as the classes of
:mod:`omni_jobs.errors`; ServerUnavailable means that no answer came.
"""

from omni_jobs.client.client import Client, error_of
from omni_jobs.client.user_message import user_message

__all__ = ["Client", "error_of", "user_message"]
