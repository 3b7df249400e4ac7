"""``is_cancelled``: whether a task is being cancelled itself, or only what it waits for was."""

import asyncio


def is_cancelled() -> bool:
    """Return whether somebody cancels the current task. A CancelledError may also come of what the task waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
