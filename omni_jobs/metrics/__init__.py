"""What a process counts and measures, once, with ``prometheus-client``: ``/metrics`` shows it, workers record it.

A class for each kind of process has its metrics. Observers of a part change them, in the room of that part. No label is
a tenant, a job, a worker or a key, because a label's values must be few.
"""
