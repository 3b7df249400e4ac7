"""What the tests of object stores put into them."""

import xxhash

from omni_jobs.storage import ObjectRef, ObjectStore, payload_key

KEY = payload_key("job-1", "thinker", 1)
MIB = 1 << 20


def ref_of(key: str, data: bytes) -> ObjectRef:
    return ObjectRef(key=key, size=len(data), digest=f"xxh3:{xxhash.xxh3_128(data).hexdigest()}")


def damaged(store: ObjectStore, ref: ObjectRef, data: bytes) -> ObjectRef:
    """What a reader meets whose object became other bytes: put behind the store's back would be the same."""
    store.put(ref.key, [data])
    return ref
