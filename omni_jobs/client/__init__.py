"""The Python client of the HTTP API: typed, with ``await`` or without.

    client = Client("http://127.0.0.1:8000")
    job = client.submit({"model": "qwen2_5_omni", "messages": [user_message("Hello")], "modalities": ["text", "audio"]})
    job = client.wait(job.id, timeout=600)
    print(job.result["text"])
    client.save(job, Path("out"))   # result.json, text.txt, audio.wav

``AsyncClient`` has the same methods, to be awaited.

A call is repeated a few times while its error may pass, such as no answer or too many jobs waiting; the download of an
artifact is not, nor a bulk whose lines come from an iterator. A submit carries an idempotency key, so no repetition
makes a second job. The server's errors are raised as the classes of :mod:`omni_jobs.errors`; ServerUnavailable means
that the server gave no answer.
"""

from omni_jobs.client.async_client import AsyncClient
from omni_jobs.client.client import Client
from omni_jobs.client.followed import JobEvent
from omni_jobs.client.repeats import error_of
from omni_jobs.client.user_message import user_message

__all__ = ["AsyncClient", "Client", "JobEvent", "error_of", "user_message"]
