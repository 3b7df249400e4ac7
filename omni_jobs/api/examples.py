"""Examples of requests and answers, for the OpenAPI document. A test submits and parses them."""

import base64
import struct
from typing import Any

from omni_jobs.identity import DEFAULT_TENANT
from omni_jobs.requests import CHANGEABLE, JobRequest

# A tenth of a second of silence, 16 kHz, 16 bits, mono.
_WAV = base64.b64encode(
    struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", 3236, b"WAVEfmt ", 16, 1, 1, 16_000, 32_000, 2, 16, b"data", 3200)
    + bytes(3200)
).decode()

SUBMITS: dict[str, dict[str, Any]] = {
    "text": {
        "summary": "Text in, text out",
        "value": {
            "model": "qwen2_5_omni",
            "messages": [{"role": "user", "content": "用一句话介绍灯塔。"}],
            "max_tokens": 64,
        },
    },
    "speech": {
        "summary": "Text in, text and speech out",
        "value": {
            "model": "qwen2_5_omni",
            "messages": [{"role": "user", "content": "Tell me a story about a lighthouse."}],
            "modalities": ["text", "audio"],
            "audio": {"voice": "Chelsie", "format": "wav"},
            "temperature": 0.7,
            "stages": {"talker": {"temperature": 0.9, "top_k": 40}},
            "seed": 7,
            "metadata": {"order": "42"},
        },
    },
    "audio": {
        "summary": "A question about a recording (0.1 s of silence)",
        "value": {
            "model": "qwen2_5_omni",
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_audio", "input_audio": {"data": _WAV, "format": "wav"}},
                        {"type": "text", "text": "What do you hear?"},
                    ],
                }
            ],
        },
    },
}

MULTIPART: dict[str, Any] = {
    "type": "object",
    "required": ["request"],
    "properties": {
        "request": {"$ref": "#/components/schemas/JobRequest"},
        "prompt_embeds": {
            "type": "string",
            "format": "binary",
            "description": "a safetensors file with one tensor, prompt_embeds: float [tokens, hidden size]",
        },
    },
}

_FIELDS = JobRequest.model_json_schema(ref_template="#/components/schemas/{model}")["properties"]
FORK: dict[str, Any] = {
    "type": "object",
    "required": ["from_stage"],
    "additionalProperties": False,
    "properties": {
        "from_stage": {"type": "string", "description": "this stage and all that follow it run anew"},
        **{name: _FIELDS[name] for name in CHANGEABLE},
    },
    "example": {
        "from_stage": "talker",
        "audio": {"voice": "Ethan"},
        "stages": {"talker": {"temperature": 0.5}},
        "seed": 8,
    },
}

JOB: dict[str, Any] = {
    "id": "job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f",
    "object": "job",
    "pipeline": "qwen2_5_omni",
    "pipeline_version": "1",
    "status": "in_progress",
    "created_at": "2026-01-05T09:30:00.120000Z",
    "started_at": "2026-01-05T09:30:00.140000Z",
    "finished_at": None,
    "modalities": ["text"],
    "stages": [
        {
            "name": "thinker",
            "status": "running",
            "attempt": 1,
            "reason": None,
            "queued_at": "2026-01-05T09:30:00.120000Z",
            "started_at": "2026-01-05T09:30:00.140000Z",
            "finished_at": None,
            "progress": {"done": 12, "total": 64, "unit": "tokens", "text": "灯塔是海边的"},
            "payload_bytes": None,
            "worker": "qwen2_5_omni.thinker-1@gpu-a",
            "errors": [],
            "finish_reason": None,
            "usage": None,
            "load_s": 0.003,
            "run_s": None,
            "store_s": None,
        }
    ],
    "waiting": None,
    "warnings": [],
    "result": None,
    "result_so_far": None,
    "artifacts": [],
    "error": None,
    "metadata": {},
    "seed": 7,
    "expires_at": "2026-01-05T09:45:00.120000Z",
    "retries": 0,
    "forked_from": None,
    "usage": None,
    "tenant": DEFAULT_TENANT,
    "priority": "normal",
}

EVENTS: list[dict[str, Any]] = [
    {
        "id": 1,
        "type": "job.failed",
        "at": "2026-01-05T09:30:02.750000Z",
        "data": {"error": {"code": "model_error", "message": "the engine refused the prompt", "stage": "thinker"}},
    },
    {"id": 2, "type": "job.retried", "at": "2026-01-05T09:52:00.500000Z", "data": {"stages": ["thinker"]}},
]

EVENT_STREAM = """\
event: stage
data: {"stage":"thinker","attempt":1,"status":"running"}

event: text
data: {"stage":"thinker","attempt":1,"offset":0,"text":"The Pharos of"}

id: 1
event: job.completed
data: {"id":1,"type":"job.completed","at":"2026-01-05T09:30:02.750000Z","data":{}}

"""
