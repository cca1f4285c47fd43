"""Exceptions as data: what a failure keeps when its process is gone.

Kept: type, text, arguments, attributes that can be encoded, notes, the traceback as text, the place with its source,
causes and contexts (bounded), the members of groups. Texts are bounded, so that a failure always fits. How an error is
made from it again, and why that is safe: `failures_revive`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from aioreactor.errors import AioreactorError
from aioreactor.failures import ORIGIN, Location, Origin, error_text, format_traceback, locate, origin_of
from aioreactor.redaction import REDACTED, display
from aioreactor.store.codec_portable import portable
from aioreactor.store.codec_wire import pack_plain, unpack_plain

Scrub: TypeAlias = Callable[[str], str]

MAX_CHAIN = 8
MAX_LEAVES = 64
MAX_TEXT = 16 * 1024
MAX_TRACEBACK = 32 * 1024
MAX_ATTRIBUTE = 16 * 1024
MAX_ATTRIBUTES = 64
_MAX_NESTING = 2
_nesting: ContextVar[int] = ContextVar("aioreactor_error_nesting", default=0)
"""How many errors we are inside of by way of attributes: a `ReactorFailed` holds a failure, which holds errors."""


class RemoteError(AioreactorError):
    """An error from another process whose class is not known in this one; it reads like the original.

    ``error_type`` is the original's ``module.QualName``, ``attributes`` what it carried. Import the module that
    defines the class before reading, and the error comes back as itself.
    """

    def __init__(self, error_type: str, message: str, attributes: dict[str, Any] | None = None) -> None:
        self.error_type = error_type
        self.attributes = attributes or {}
        super().__init__(message)

    def __repr__(self) -> str:
        return f"RemoteError({self.error_type!r}, {str(self)!r})"


class ErrorData(Struct, omit_defaults=True):
    """One error as it is stored. ``lost`` names arguments and attributes that could not be kept as they were."""

    module: str
    name: str
    message: str
    args: list[Any] = []
    attributes: dict[str, Any] = {}
    lost: list[str] = []
    notes: list[str] = []
    traceback: str = ""
    location: Location | None = None
    cause: ErrorData | None = None
    context: ErrorData | None = None
    suppress_context: bool = False
    leaves: list[ErrorData] = []

    @property
    def error_type(self) -> str:
        """``module.QualName``; builtins bare."""
        return self.name if self.module == "builtins" else f"{self.module}.{self.name}"


# ------------------------------------------------------------------ writing


def failure_to_data(error: BaseException, *, scrub: Scrub | None = None) -> ErrorData:
    """The error as data that `pack_plain` encodes. ``scrub`` takes secrets out of every text."""
    return _Writer(scrub).write(error, MAX_CHAIN if _nesting.get() == 0 else 1, root=True)


def pack_failure(error: BaseException, *, scrub: Scrub | None = None) -> bytes:
    """The error as bytes; never fails for what the error carries."""
    return pack_plain(failure_to_data(error, scrub=scrub))


class _Writer:
    def __init__(self, scrub: Scrub | None) -> None:
        self._scrub = scrub
        self._left = MAX_LEAVES

    def write(self, error: BaseException, depth: int, *, root: bool = False) -> ErrorData:
        origin = origin_of(error)
        module, name = _names(error, origin)
        data = ErrorData(module, name, self._text(error_text(error), MAX_TEXT))
        data.args = self._arguments(_arguments_of(error), data.lost)
        data.attributes = self._attributes(error, data.lost)
        data.notes = [self._text(note, MAX_TEXT) for note in _notes(error)]
        data.traceback = self._text(format_traceback(error), MAX_TRACEBACK) if root else ""
        data.location = self._location(error)
        self._link(data, error, depth)
        if isinstance(error, BaseExceptionGroup):
            data.leaves = list(self._members(error, depth))
        return data

    def _link(self, data: ErrorData, error: BaseException, depth: int) -> None:
        cause, context = error.__cause__, error.__context__
        data.suppress_context = error.__suppress_context__
        if depth > 0 and cause is not None:
            data.cause = self.write(cause, depth - 1)
        elif depth > 0 and context is not None and not error.__suppress_context__:
            data.context = self.write(context, depth - 1)

    def _members(self, group: BaseExceptionGroup[Any], depth: int) -> Iterator[ErrorData]:
        for leaf in group.exceptions:
            if self._left <= 0 or depth < 0:
                return
            self._left -= 1
            yield self.write(leaf, depth - 1)

    def _text(self, text: str, limit: int) -> str:
        """Scrubbed first, so that no secret survives by being cut in two; encodable always."""
        text = self._scrub(text) if self._scrub else text
        if len(text) > limit:
            text = f"{text[: limit // 2]}\n... {len(text) - limit} characters left out ...\n{text[-limit // 2 :]}"
        return text.encode("utf-8", "backslashreplace").decode("utf-8")

    def _location(self, error: BaseException) -> Location | None:
        found = locate(error)
        if found is None:
            return None
        texts = (self._text(text, 2048) for text in (found.file, found.function, found.snippet))
        file, function, source = texts
        return Location(file, found.line, function, source)

    def _arguments(self, args: Iterable[Any], lost: list[str]) -> list[Any]:
        kept = []
        for index, arg in enumerate(args):
            try:
                kept.append(_kept(arg, self._scrub))
            except Exception:
                kept.append(self._text(_safe_repr(arg), 256))
                lost.append(f"args[{index}]")
        return kept

    def _attributes(self, error: BaseException, lost: list[str]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        found = error.attributes if isinstance(error, RemoteError) else error.__dict__
        for name, value in list(found.items()):
            if not isinstance(name, str) or name.startswith("__") or name == ORIGIN:
                continue
            try:
                if len(kept) >= MAX_ATTRIBUTES:
                    raise ValueError("too many")
                kept[name] = _kept(value, self._scrub)
            except Exception:
                lost.append(self._text(name, 256))
        return kept


def _names(error: BaseException, origin: Origin | None) -> tuple[str, str]:
    if isinstance(error, RemoteError) and origin is not None:
        return origin.module, origin.name
    return str(type(error).__module__), str(type(error).__qualname__)


def _arguments_of(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, BaseExceptionGroup):
        return (error.message,)
    if isinstance(error, OSError) and len(error.args) == 2 and error.filename is not None:
        return (*error.args, error.filename, None, error.filename2)[: 5 if error.filename2 is not None else 3]
    return error.args


def _notes(error: BaseException) -> list[str]:
    notes = error.__dict__.get("__notes__")
    return [str(note) for note in notes[:32]] if isinstance(notes, (list, tuple)) else []


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__qualname__}>"


def _kept(value: Any, scrub: Scrub | None) -> Any:
    """An attribute in the form that is stored.

    Raises:
        Exception: it cannot be encoded, or is too large.
    """
    depth = _nesting.get()
    if depth >= _MAX_NESTING and not isinstance(value, (str, int, float, bytes, type(None))):
        raise ValueError("too deep inside other errors")
    token = _nesting.set(depth + 1)
    try:
        made = portable(_clean(display(value), scrub))
        # Encoded here and now, so that an outcome inside is encoded under this nesting; and to know that it can be.
        data = pack_plain(made)
    finally:
        _nesting.reset(token)
    if len(data) > MAX_ATTRIBUTE:
        raise ValueError("too large")
    return msgspec.Raw(data)


def _clean(value: Any, scrub: Scrub | None) -> Any:
    if scrub is None:
        return value
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        return value if scrub(text) == text else REDACTED.encode()
    if isinstance(value, dict):
        return {_clean(key, scrub): _clean(item, scrub) for key, item in value.items()}
    if type(value) in {list, tuple, set, frozenset}:
        return type(value)(_clean(item, scrub) for item in value)
    if isinstance(value, (int, float, type(None))):
        return value
    plain = unpack_plain(pack_plain(value))
    if isinstance(plain, (str, bytes, dict, list)):
        clean = _clean(plain, scrub)
        return value if clean == plain else clean
    return value


def scrubbed(value: Any, scrub: Scrub | None) -> Any:
    """A value for people to read: without secrets, and as text where it cannot be encoded."""
    try:
        return _kept(value, scrub)
    except Exception:
        text = _safe_repr(value)[:256].encode("utf-8", "backslashreplace").decode("utf-8")
        return scrub(text) if scrub else text
