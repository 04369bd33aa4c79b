"""Errors of Turnqueue, split by who must act.

    TurnqueueError
      UserError         the caller: fix the request (unknown id, conflict, bad field)
      ConfigError       the operator or tool author: fix settings, a profile or a tool
      Unavailable       wait: a server we need does not answer, and nothing has changed
        CommitUnknown   look: the change may have been made

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


class CommitUnknown(Unavailable):
    """The database went away while it saved a change, which may have been made: look at `operation_id` first."""

    def __init__(self, reason: str, operation_id: str | None = None) -> None:
        where = f": look at {operation_id} before you repeat it" if operation_id else ""
        super().__init__("COMMIT_UNKNOWN", f"{reason}; the change may have been saved all the same{where}")
        self.reason = reason
        self.operation_id = operation_id
