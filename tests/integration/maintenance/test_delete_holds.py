"""A hold on deletes: no pruner deletes an object while it lasts, and each does once it is over."""

import os
from pathlib import Path

from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs
from omni_jobs.maintenance.pruner import Pruner
from omni_jobs.settings import Settings
from omni_jobs.storage import LocalObjectStore, payload_key


def test_no_object_is_deleted_while_a_backup_holds_deletes(database: Database, tmp_path: Path) -> None:
    jobs, store = Jobs(database), LocalObjectStore(tmp_path)
    pruner = Pruner(jobs, store, Settings())
    orphan = payload_key("job-none", "first", 1)
    store.put(orphan, [b"x"])
    os.utime(store.path(orphan), (0, 0))
    jobs.hold_deletes("one", 60)
    jobs.hold_deletes("other", 60)
    jobs.end_hold("other")
    assert pruner.once().orphans == 0
    assert [each.key for each in store.list("jobs/")] == [orphan]
    jobs.hold_deletes("one", -1)  # its holder died, and its lease ran out
    assert not jobs.deletes_are_held()
    assert pruner.once().orphans == 1
    assert list(store.list("jobs/")) == []
