"""The faults: what each is and works with, a room for each kind of target, and the driver that strikes."""
