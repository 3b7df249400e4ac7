import threading
import time

from omni_jobs.batch_thread import BatchThread


def test_what_comes_while_a_batch_is_handled_is_the_next_batch() -> None:
    batches: list[list[int]] = []
    begun, go_on = threading.Event(), threading.Event()

    def handle(batch: list[int]) -> None:
        batches.append(batch)
        begun.set()
        assert go_on.wait(10)

    thread = BatchThread("test", handle)
    thread.start()
    thread.put(1)
    assert begun.wait(10)
    for item in (2, 3, 4):
        thread.put(item)
    go_on.set()
    thread.close()
    assert [batch for batch in batches if batch] == [[1], [2, 3, 4]]


def test_close_handles_the_rest() -> None:
    batches: list[list[int]] = []
    thread = BatchThread("test", batches.append)
    for item in range(5):
        thread.put(item)
    thread.start()
    thread.close()
    assert [item for batch in batches for item in batch] == [0, 1, 2, 3, 4]


def test_a_timer_calls_with_nothing() -> None:
    called = threading.Event()
    at: list[float | None] = [time.monotonic() + 0.01]

    def handle(batch: list[int]) -> None:
        at[0] = None
        if not batch:
            called.set()

    thread = BatchThread("test", handle, next_timer=lambda: at[0])
    thread.start()
    assert called.wait(10)
    thread.close()


def test_close_without_a_start_returns() -> None:
    BatchThread[int]("test", lambda batch: None).close()
