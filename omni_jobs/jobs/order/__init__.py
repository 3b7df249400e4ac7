"""The order in which queued stage runs are claimed: turns, quotas, pauses."""
