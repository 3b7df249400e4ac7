"""Backups: a directory with the database of one moment, the list of the objects that it refers to, and these objects.

    backup.json      what it is; written last, so that a directory without it is no backup
    database.…       SQLite's file, or PostgreSQL's dump in its custom format
    objects.jsonl    the object refs in that database, a line for each
    objects/         the objects themselves, if asked for, as a local object store has them

The database comes first and the objects after it. A hold keeps the pruners from deleting meanwhile what the database
of that moment still refers to. What is stored later is referred to by no row of it, and is no part of the backup.
"""

from omni_jobs.backup.make import make_backup
from omni_jobs.backup.manifest import BackupManifest
from omni_jobs.backup.restore import Restored, restore_backup

__all__ = ["BackupManifest", "Restored", "make_backup", "restore_backup"]
