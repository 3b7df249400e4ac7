"""The doorbell: the one message in a stage's queue. It says that stage runs may wait, and not which.

It names nothing that matters. One that is lost costs a poll, one too many a claim that finds nothing. So whatever
stands in a stage's queue counts as a doorbell, no message is acknowledged, and none is kept or sent again.
"""

import base64

import orjson

TASK = "omni_jobs.run_stage"
"""The name of the one Celery task, which takes no arguments."""


def doorbell(queue_name: str) -> bytes:
    """Return the doorbell of a queue: a message of Celery, with only the fields that Celery and kombu need."""
    message = {
        "body": base64.b64encode(orjson.dumps([[], {}, {}])).decode("ascii"),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"task": TASK, "id": queue_name},
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": queue_name},
            "delivery_tag": queue_name,
        },
    }
    return orjson.dumps(message)
