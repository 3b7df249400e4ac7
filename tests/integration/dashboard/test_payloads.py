"""The payloads on a job's page: read by their heads alone, from the row and from the store, sound or damaged."""

from typing import Any

import numpy as np
import pytest

from omni_jobs.jobs import Claim, Completion
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef, payload_key
from tests.integration.api_server import ApiServer
from tests.integration.hand_worker import HandWorker

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}], "keep_payloads": True}


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def encoded(claim: Claim, rows: int) -> list[memoryview]:
    tensors = {"hidden_states": Tensor.from_numpy(np.zeros((rows, 8), np.float32))}
    manifest = Manifest("hidden_states", claim.job_id, claim.stage, claim.attempt)
    return Payload(manifest, additional_information=AdditionalInformationPayload(tensors, {})).buffers()


def end(worker: HandWorker, claim: Claim, payload: bytes | ObjectRef) -> None:
    if isinstance(payload, bytes):
        left: dict[str, Any] = {"inline_payload": payload, "payload_bytes": len(payload)}
    else:
        left = {"payload": payload, "payload_bytes": payload.size}
    done = Completion(claim.stage_run_id, claim.attempt, f"w-{claim.stage}", result={"text": "x"}, **left)
    assert worker.jobs.report([done])[0].won


def test_dtypes_and_shapes_are_read_of_the_heads(api: ApiServer) -> None:
    job_id = api.http.post("/v1/jobs", json=ECHO).json()["id"]
    worker = HandWorker(api, job_id)
    claim = worker.claim("first")
    end(worker, claim, b"".join(encoded(claim, 7)))
    claim = worker.claim("second")
    buffers = encoded(claim, 100_000)
    ref = api.services.store.put(payload_key(job_id, "second", 1), [buffers[0], *buffers[1:]])
    end(worker, claim, ref)
    read: list[tuple[int, int]] = []
    store = api.services.store
    open_range = store.open_range
    store.open_range = lambda ref, start, stop: (read.append((start, stop)), open_range(ref, start, stop))[1]  # type: ignore[method-assign]
    html = api.http.get(f"/fragments/jobs/{job_id}/payloads").text
    for shape in ("F32 [7, 8]", "F32 [100000, 8]"):
        assert shape in html
    assert html.count("tensors.hidden_states") == 2
    assert (ref.key in html, ref.digest in html) == (True, True)
    assert read == [(0, 16 << 10)]  # of 3.2 MB


@pytest.mark.parametrize("damaged", [b"x", b"\x08\0\0\0\0\0\0\0<script>", b"\xff" * 64])
def test_a_damaged_payload_is_a_sentence(api: ApiServer, damaged: bytes) -> None:
    job_id = api.http.post("/v1/jobs", json=ECHO).json()["id"]
    worker = HandWorker(api, job_id)
    end(worker, worker.claim("first"), damaged)
    answer = api.http.get(f"/fragments/jobs/{job_id}/payloads")
    assert (answer.status_code, 'class="wrong"' in answer.text, "<script>" in answer.text) == (200, True, False)


def test_an_object_that_is_gone_is_a_sentence(api: ApiServer) -> None:
    job_id = api.http.post("/v1/jobs", json=ECHO).json()["id"]
    worker = HandWorker(api, job_id)
    claim = worker.claim("first")
    ref = api.services.store.put(payload_key(job_id, "first", 1), encoded(claim, 7))
    end(worker, claim, ref)
    api.services.store.delete([ref.key])
    answer = api.http.get(f"/fragments/jobs/{job_id}/payloads")
    assert (answer.status_code, 'class="wrong"' in answer.text) == (200, True)
