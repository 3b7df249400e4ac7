"""``FetchFailed``: why an exchange with a host that a stranger named came to no end."""

from enum import Enum


class Blame(Enum):
    """Who has to do something before the same exchange can succeed."""

    LINK = "link"  # it is none that is followed: wherever it leads, nothing was sent there
    SIZE = "size"  # what it leads to is too large
    ANSWER = "answer"  # its host has answered, and not with what was asked for
    HOST = "host"  # nobody: the host may do better soon


class FetchFailed(Exception):
    """An exchange was refused or broke off.

    reason  for people. It names no address, so that nobody learns how a name resolves within this network
    blame   what is wrong
    """

    def __init__(self, reason: str, blame: Blame) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blame = blame
