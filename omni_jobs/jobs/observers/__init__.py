"""The observers of jobs' transitions: the base class, and those who hear of them, a file each."""
