"""The Python client of the HTTP API: typed and synchronous.

    client = Client("http://127.0.0.1:8000")
    job = client.submit({"model": "qwen2_5_omni", "messages": [user_message("Hello")], "modalities": ["text", "audio"]})
    job = client.wait(job.id, timeout=600)
    print(job.result["text"])
    client.save(job, Path("out"))   # result.json, text.txt, audio.wav

A call is repeated a few times while its error may pass, such as no answer or too many jobs waiting; the download of an
artifact is not, nor a bulk whose lines come from an iterator. A submit carries an idempotency key, so no repetition
makes a second job. The server's errors are raised as the classes of :mod:`omni_jobs.errors`; ServerUnavailable means
that the server gave no answer.
"""

from omni_jobs.client.client import Client
from omni_jobs.client.failed_calls import error_of
from omni_jobs.client.user_message import user_message

__all__ = ["Client", "error_of", "user_message"]
