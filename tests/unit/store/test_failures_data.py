"""Exceptions through the store: the very class where it is safe, a stand-in that reads the same where it is not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct

import aioreactor
from aioreactor import errors as library
from aioreactor.errors import AioreactorError
from aioreactor.failures import describe, format_traceback, locate, origin_of, type_name
from aioreactor.results import Failure, Halt
from aioreactor.store.failures_data import MAX_CHAIN, MAX_TRACEBACK, RemoteError, failure_to_data, pack_failure
from aioreactor.store.failures_revive import failure_from_data, find_class, unpack_failure
from tests.unit.store.types_kit import Money


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def back(error: BaseException, **options: Any) -> Any:
    return unpack_failure(pack_failure(error, **options))


CALLS: list[str] = []


class Declined(Exception):
    def __new__(cls, *args: Any, **kwargs: Any) -> Declined:
        CALLS.append("new")
        return super().__new__(cls, *args)

    def __init__(self, code: int, *, hint: str) -> None:
        CALLS.append("init")
        self.code = code
        self.hint = hint
        self.parts = (1, {2, 3})
        super().__init__(f"declined with {code}")


class Broken(Exception):
    connection: Any

    def __str__(self) -> str:
        return str(self.connection.name)


class Net(OSError):
    pass


class Group(ExceptionGroup):
    pass


class NotAnError:
    pass


LIBRARY = [
    library.DefinitionError("R", ["a", "b"]),
    library.InputValidationError("R", {"a": ["x"], "*": ["y", "z"]}),
    library.OutputValidationError("s", "bad"),
    library.ArgumentError("s", "p", "why"),
    library.StepError("no"),
    library.StepTimeout("s", 1.5),
    library.InterruptTimeout("s", 1.5),
    library.CorrelationTaken("s", "c", "r"),
    library.RecoveriesExhausted("r", 3),
    library.DeadlineExceeded("R", 3.0),
    library.StepCancelled("s", "why"),
    library.ReactorFailed(Failure(ValueError("x"), "a.b", attempts=3)),
    library.NoValue(Halt("x", "s"), Failure("x")),
    library.ContentionError("k", "t"),
    library.LockUnavailable("k", "t"),
    library.SemaphoreUnavailable("k", "t"),
    library.RateLimited("k", retry_after=1.5, window="1 s", limit=4),
    library.OutOfTurn("k", "t"),
    library.LeaseLost("k", "r"),
    library.OwnershipLost("r", "w"),
    library.StoreRequired("x", ["a"]),
    library.ResultsNotLoaded(12),
    library.RunNotFound("r"),
    library.NotResumable("r", "failed", "w"),
    library.AlreadyResumed("r", "s"),
    library.IdempotencyConflict("k"),
    library.UnitTimeout("u", 2.0),
    library.PlanChanged("r", ["a"]),
    library.RecoveriesExhausted("r", 3),
    library.PayloadTooLarge("s", 5, 4),
    library.SerializationError("w", "r"),
    library.UnknownReactor("n", "r"),
    library.UnknownRateLimit("n"),
]


def test_every_library_error_is_in_this_table() -> None:
    def tree(cls: type[AioreactorError]) -> Iterator[type[AioreactorError]]:
        yield cls
        for sub in cls.__subclasses__():
            if sub.__module__ == library.__name__:
                yield from tree(sub)

    assert {type(error) for error in LIBRARY} >= set(tree(AioreactorError)) - {AioreactorError}


@pytest.mark.parametrize("error", LIBRARY, ids=lambda error: type(error).__name__)
def test_library_errors_keep_class_text_and_typed_fields(error: BaseException) -> None:
    found = back(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.args == error.args
    for name, value in error.__dict__.items():
        kept = getattr(found, name)
        assert type(kept) is type(value)
        if isinstance(value, Failure):
            assert (str(kept.error), kept.step, kept.attempts) == (str(value.error), value.step, value.attempts)
        elif not isinstance(value, Halt):
            assert kept == value


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        KeyError(("a", 1)),
        OSError(2, "no", "/x"),
        FileNotFoundError(2, "no", "/x"),
        OSError(2, "no", "/x", None, "/y"),
        Net(5, "io"),
        StopIteration(4),
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError("why"),
        TimeoutError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        SyntaxError("bad", ("f.py", 1, 2, "x y")),
        ImportError("no"),
        ZeroDivisionError("d"),
    ],
    ids=repr,
)
def test_builtin_errors_come_back_whole(error: BaseException) -> None:
    found = back(error)
    assert type(found) is type(error)
    assert (str(found), found.args) == (str(error), error.args)
    for name in ("errno", "filename", "filename2", "code", "value", "reason", "lineno"):
        assert getattr(found, name, None) == getattr(error, name, None)


def test_a_users_error_comes_back_without_running_any_of_its_code() -> None:
    error = Declined(5, hint="card")
    CALLS.clear()
    found = back(error)
    assert CALLS == []
    assert type(found) is Declined
    assert (found.code, found.hint, found.parts, str(found)) == (5, "card", (1, {2, 3}), "declined with 5")


def test_a_class_that_is_not_reachable_by_name_comes_back_as_a_stand_in() -> None:
    class Local(Exception):
        pass

    error: Any = Local("text", 1)
    error.amount = 5
    found = back(raised(error))
    assert type(found) is RemoteError
    assert str(found) == "('text', 1)"
    assert found.error_type.endswith("<locals>.Local")
    assert found.attributes == {"amount": 5}
    assert type_name(found) == found.error_type
    assert describe(found) == f"{found.error_type}: ('text', 1)"
    again = back(found)
    assert (again.error_type, str(again), again.attributes) == (found.error_type, str(found), found.attributes)


def test_nothing_is_imported_for_a_stored_name() -> None:
    script = (
        "import sys; from aioreactor.store.failures_data import ErrorData; "
        "from aioreactor.store.failures_revive import failure_from_data; "
        "before = set(sys.modules); "
        "e = failure_from_data(ErrorData('this', 'X', 'boo')); "
        "f = failure_from_data(ErrorData('tkinter.ttk', 'TclError', 'boo')); "
        "assert type(e).__name__ == type(f).__name__ == 'RemoteError', e; "
        "assert set(sys.modules) == before"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (__name__, "NotAnError"),
        (__name__, "raised"),
        (__name__, "os.system"),
        (__name__, "CALLS.append"),
        ("os", "system"),
        ("builtins", "eval"),
        ("builtins", "int"),
        ("os", "error"),  # an alias: OSError under another name
        ("", ""),
        ("builtins", "ValueError.__init__"),
        ("no.such", "Thing"),
        (__name__, "Declined.__dict__"),
    ],
)
def test_only_exception_classes_under_their_own_name_are_found(module: str, name: str) -> None:
    assert find_class(module, name) is None


def test_a_modules_getattr_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("lazy_one")

    def lazy(name: str) -> Any:
        raise AssertionError("asked")

    module.__getattr__ = lazy
    monkeypatch.setitem(sys.modules, "lazy_one", module)
    assert find_class("lazy_one", "Error") is None


def test_traceback_and_location_are_kept_as_text() -> None:
    error = raised(Declined(5, hint="x"))
    text, place = format_traceback(error), locate(error)
    found = back(error)
    assert found.__traceback__ is None
    assert format_traceback(found) == text
    assert "raise error" in text
    assert locate(found) == place
    assert place is not None
    assert place.function == "raised"
    assert origin_of(error) is None
    assert format_traceback(back(found)) == text


def test_raising_it_here_does_not_move_its_origin() -> None:
    found = back(raised(ValueError("x")))
    place = locate(found)
    raised(found)
    assert locate(found) == place


def test_causes_contexts_and_notes_are_kept() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as caught:
        error = caught
    error.add_note("while paying")
    found = back(error)
    assert repr(found.__cause__) == "KeyError('inner')"
    assert found.__suppress_context__
    assert found.__notes__ == ["while paying"]
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904
    except ValueError as caught:
        found = back(caught)
    assert found.__cause__ is None
    assert repr(found.__context__) == "KeyError('inner')"


def test_a_long_or_circular_chain_is_cut() -> None:
    error = first = ValueError("0")
    for number in range(50):
        following = ValueError(str(number))
        error.__cause__ = following
        error = following
    found, length = back(first), 0
    while found.__cause__ is not None:
        found, length = found.__cause__, length + 1
    assert length == MAX_CHAIN
    one, two = ValueError("1"), ValueError("2")
    one.__cause__, two.__cause__ = two, one
    assert str(back(one).__cause__) == "2"


def test_groups_keep_their_members_and_class() -> None:
    error = raised(Group("several", [Declined(1, hint="a"), ExceptionGroup("in", [ValueError("x")])]))
    found = back(error)
    assert type(found) is Group
    assert found.message == "several"
    assert [type(leaf) for leaf in found.exceptions] == [Declined, ExceptionGroup]
    leaf: Any = found.exceptions[0]
    assert leaf.code == 1
    assert locate(found) == locate(error)
    assert type(back(BaseExceptionGroup("b", [KeyboardInterrupt()]))) is BaseExceptionGroup

    class LocalGroup(ExceptionGroup):
        pass

    found = back(LocalGroup("several", [ValueError("x")]))
    assert type(found) is ExceptionGroup
    assert type_name(found).endswith("LocalGroup")


def test_a_huge_group_is_bounded() -> None:
    found = back(ExceptionGroup("many", [ValueError(str(n)) for n in range(10_000)]))
    assert len(found.exceptions) == 64


def test_what_cannot_be_encoded_is_dropped_and_named() -> None:
    error: Any = Declined(5, hint="x")
    error.connection = object()
    error.huge = "x" * 100_000
    error.args = ("a", object())
    data = failure_to_data(error)
    assert set(data.lost) == {"connection", "huge", "args[1]"}
    found = back(error)
    assert found.code == 5
    assert not hasattr(found, "connection")
    assert found.args[0] == "a"
    assert "object object" in found.args[1]


def test_an_error_whose_text_raises_is_stored_all_the_same() -> None:
    error = Broken()
    assert "whose text cannot be had" in describe(back(error))

    class Named:
        name = "db"

    error.connection = Named()
    assert describe(back(error)) == f"{__name__}.Broken: db"


def test_texts_are_bounded_and_always_encodable() -> None:
    error = raised(ValueError("x" * 1_000_000 + "\ud800"))
    data = pack_failure(error)
    assert len(data) < 4 * MAX_TRACEBACK
    assert "characters left out" in describe(unpack_failure(data))


def test_failures_inside_failures_do_not_multiply() -> None:
    error: BaseException = raised(ValueError("deep"))
    for _ in range(30):
        try:
            raise library.ReactorFailed(Failure(error)) from error
        except library.ReactorFailed as caught:
            error = caught
    assert len(pack_failure(error)) < 600_000


def test_secrets_are_taken_out_of_everything() -> None:
    class Request(Struct):
        token: str

    error: Any = Declined(5, hint="tok-secret")
    error.request = Request("tok-secret")
    error.raw = b"tok-secret"
    error.args = ("uses tok-secret", ["tok-secret"])
    error.add_note("tok-secret")
    error.__cause__ = ValueError("tok-secret")
    data = pack_failure(raised(error), scrub=lambda text: text.replace("tok-secret", "[redacted]"))
    assert b"tok-secret" not in data
    unpacked: Any = unpack_failure(data)
    assert unpacked.request == {"token": "[redacted]"}
    clean = back(error, scrub=lambda text: text)
    assert clean.parts == (1, {2, 3})


def test_structs_in_attributes_come_back_as_plain_data() -> None:
    from decimal import Decimal

    error: Any = ValueError("x")
    error.price = Money(Decimal("1.5"), "E")
    assert back(error).price == {"amount": "1.5", "currency": "E"}


def test_dunder_attributes_are_not_taken_from_stored_data() -> None:
    data = failure_to_data(ValueError("x"))
    data.attributes = {"__class__": 1, "__cause__": 2, "ok": 3}
    found: Any = failure_from_data(data)
    assert found.ok == 3
    assert "__class__" not in found.__dict__
    assert "__cause__" not in found.__dict__


def test_a_remote_error_survives_copying_and_raising() -> None:
    import copy

    error = RemoteError("app.Declined", "no", {"code": 1})
    twin = copy.copy(error)
    assert (twin.error_type, twin.attributes, str(twin)) == ("app.Declined", {"code": 1}, "no")
    assert repr(error) == "RemoteError('app.Declined', 'no')"
    assert aioreactor
    assert os
