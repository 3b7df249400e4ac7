"""OpenAI's forms: what the clients of its API send and read, made of our requests, jobs and pipelines.

What stands here stores nothing. What a client sends becomes ``Submission``s; what it gets is a function of a job.
The routes stand with the others, in ``omni_jobs.api``.

Each view has a package: chat, images, speech, transcriptions, videos, responses. In it ``parameters`` says what clients
may send, ``request`` makes jobs of it, and ``answer`` and ``stream`` tell of them. Beside these stands what several
views share, and the list of ``models``.
"""
