"""Errors of Turnqueue, split by who must act.

    TurnqueueError
      UserError         the caller: fix the request (unknown id, conflict, bad field)
      ConfigError       the operator or tool author: fix settings, a profile or a tool
      Unavailable       wait: a server we need does not answer

Each carries a stable `code` for machines and one line for people that names the field and what to do.
"""


class TurnqueueError(Exception):
    """Base; never raised itself."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class UserError(TurnqueueError):
    """The request cannot be done as asked."""


class NotFound(UserError):
    """No such operation, approval, profile or tool (or it belongs to another tenant, which looks the same)."""


class Conflict(UserError):
    """The 409 kind: the key was used for another request, or the state does not allow it any more."""


class ConfigError(TurnqueueError):
    """Settings, a profile or a tool specification is wrong; nothing was started."""


class Unavailable(TurnqueueError):
    """The database or the broker does not answer."""
