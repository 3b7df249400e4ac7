"""Traces of jobs, one over all processes: which trace a job belongs to, and spans by OpenTelemetry where that is on.

Only ``provider`` and its ``encoded_span`` import OpenTelemetry, and only when the setting ``tracing`` is on.
"""
