"""Stored errors as exceptions again.

**Reading runs no code.** The class of a stored error is looked up by name only among classes that *are* in modules
that *are* imported (``sys.modules``, through their dictionaries: no import, no module ``__getattr__``), has to be a
`BaseException` under that very name, and the object is made by the builtin base's ``__new__``, never by the class's own
``__new__`` or ``__init__``; attributes go straight into ``__dict__``. Anything else comes back as `RemoteError`, which
reads the same and knows the ``error_type``. So a class defined inside a function, or in a module that this process
has not imported (yet), is a `RemoteError` here. Where it came from stays known by `failures.Origin`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import msgspec

from aioreactor.errors import SerializationError
from aioreactor.failures import ORIGIN, Origin
from aioreactor.store.codec_wire import revive
from aioreactor.store.failures_data import ErrorData, RemoteError

_HEAP_TYPE = 1 << 9
"""The flag of classes that are not compiled in: Py_TPFLAGS_HEAPTYPE."""
_read = msgspec.msgpack.Decoder(ErrorData, ext_hook=revive).decode


def unpack_failure(data: bytes, where: str = "a stored failure") -> BaseException:
    """The error of what `pack_failure` made.

    Raises:
        SerializationError: the bytes are damaged.
    """
    try:
        return failure_from_data(_read(data))
    except Exception as error:
        raise SerializationError(where, f"cannot be read: {error}") from error


def failure_from_data(data: ErrorData) -> BaseException:
    """The error again: of its own class where that is known here, else a `RemoteError`."""
    error = _revived(data)
    if data.notes:
        error.__dict__["__notes__"] = list(data.notes)
    error.__cause__ = failure_from_data(data.cause) if data.cause else None
    error.__context__ = failure_from_data(data.context) if data.context else None
    error.__suppress_context__ = data.suppress_context
    error.__dict__[ORIGIN] = Origin(data.module, data.name, data.message, data.traceback, data.location)
    return error


def _revived(data: ErrorData) -> BaseException:
    kind = find_class(data.module, data.name)
    if data.leaves:
        return _group(kind, data)
    error = _instance(kind, data.args) if kind is not None and not issubclass(kind, BaseExceptionGroup) else None
    if error is None:
        return RemoteError(data.error_type, data.message, dict(data.attributes))
    error.__dict__.update(_fields(data))
    return error


def _fields(data: ErrorData) -> dict[str, Any]:
    return {name: value for name, value in data.attributes.items() if not name.startswith("__")}


def _group(kind: type[BaseException] | None, data: ErrorData) -> BaseException:
    message = data.args[0] if data.args and isinstance(data.args[0], str) else data.message
    leaves = [failure_from_data(leaf) for leaf in data.leaves]
    if kind is None or not issubclass(kind, BaseExceptionGroup):
        kind = BaseExceptionGroup  # gives an ExceptionGroup where it can
    try:
        error: BaseException = BaseExceptionGroup.__new__(kind, message, leaves)
    except TypeError:  # an ExceptionGroup with a leaf that is none
        error = BaseExceptionGroup(message, leaves)
    error.__dict__.update(_fields(data))
    return error


def find_class(module: str, name: str) -> type[BaseException] | None:
    """The exception class of that name, when it is there already. Imports nothing and runs nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        if isinstance(found, ModuleType):
            # Not getattr: a module may import, or do anything, when asked for a name; nor vars, for lazy modules.
            found = object.__getattribute__(found, "__dict__").get(part)
        elif isinstance(found, type):
            found = type.__getattribute__(found, "__dict__").get(part)
        else:
            return None
    if not isinstance(found, type) or not issubclass(found, BaseException):
        return None
    return found if (found.__module__, found.__qualname__) == (module, name) else None


def _instance(kind: type[BaseException], args: list[Any]) -> BaseException | None:
    """An object of the class, made by the builtin class that it is built on: no code of the class itself runs."""
    base: Any = next(cls for cls in kind.__mro__ if not cls.__flags__ & _HEAP_TYPE)
    try:
        error: BaseException = base.__new__(kind, *args)
        base.__init__(error, *args)
    except Exception:
        try:
            error = base.__new__(kind)
        except Exception:
            return None
        error.args = tuple(args)
    return error
