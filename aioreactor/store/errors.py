"""What the store client raises. Errors of redis-py and of the socket never leave this package."""

from __future__ import annotations

import re

from aioreactor.errors import AioreactorError

_CODE = re.compile(r"([A-Z]+) ")
# Redis 6.2 wraps what a command inside a script answered; later versions put the code in front.
_CODE_WITHIN_SCRIPT = re.compile(r"ERR Error running script .*?: -(READONLY|OOM|NOREPLICAS|MASTERDOWN) ")


class StoreError(AioreactorError):
    """The root of everything that the store raises."""


class StoreClosed(StoreError):
    """The client was closed before, or while, the command was executed."""


class StoreUnavailable(StoreError):
    """The store could not be reached, or refused to serve, for as long as retrying was allowed.

    The last error of the store is the `__cause__`.

    Attributes:
        command: Name of the script or command.
        waited: Seconds from its issue until it was given up.
        may_be_applied: False if it is certain that the command had no effect.
    """

    def __init__(self, command: str, waited: float, cause: BaseException | None, *, may_be_applied: bool) -> None:
        self.command = command
        self.waited = waited
        self.may_be_applied = may_be_applied
        effect = "it may have been applied" if may_be_applied else "it was not applied"
        reason = f"{type(cause).__name__}: {cause}" if cause is not None else "no connection"
        super().__init__(f"{command} given up after {waited:.1f} s, {effect}; the store's last error: {reason}")
        self.__cause__ = cause


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost between sending a command that is not repeatable and its reply."""

    def __init__(self, command: str, waited: float, cause: BaseException | None) -> None:
        super().__init__(command, waited, cause, may_be_applied=True)


class ReplyError(StoreError):
    """The server answered a command with an error which repeating it would not cure.

    Attributes:
        code: First word of the answer, such as `WRONGTYPE`, `OOM` or `ERR`.
        message: The whole answer.
        command: Name of the script or command, once it is known.
    """

    command: str = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = _code_of(message)

    def __str__(self) -> str:
        return f"{self.command}: {self.message}" if self.command else self.message


class ScriptError(StoreError):
    """A Lua file breaks a convention, is missing, or answered in a form which it does not declare."""


def _code_of(message: str) -> str:
    within = _CODE_WITHIN_SCRIPT.match(message)
    if within:
        return within[1]
    found = _CODE.match(message + " ")
    return found[1] if found else "ERR"
