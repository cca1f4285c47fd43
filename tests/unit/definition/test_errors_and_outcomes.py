"""Errors and outcomes as values: one tree, typed fields, texts; frozen, matched, pickled, shown without secrets."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import aioreactor
from aioreactor import (
    AioreactorError,
    AlreadyResumed,
    ArgumentError,
    ContentionError,
    CorrelationTaken,
    DeadlineExceeded,
    DefinitionError,
    Dispatched,
    Failure,
    Halt,
    IdempotencyConflict,
    InputValidationError,
    InterruptTimeout,
    LeaseLost,
    LockUnavailable,
    MapResults,
    NotResumable,
    NoValue,
    OpenInterrupt,
    OutOfTurn,
    OutputValidationError,
    OwnershipLost,
    Paused,
    PayloadTooLarge,
    PlanChanged,
    RateLimited,
    ReactorFailed,
    RecoveriesExhausted,
    ResultsNotLoaded,
    RollbackFailure,
    RunNotFound,
    SemaphoreUnavailable,
    SerializationError,
    Skipped,
    StepCancelled,
    StepError,
    StepTimeout,
    StoreRequired,
    Success,
    Trace,
    TraceEntry,
    UnitTimeout,
    UnknownRateLimit,
    UnknownReactor,
)


def no_value() -> NoValue:
    try:
        Halt("enough").unwrap()
    except NoValue as error:
        return error
    raise AssertionError("a halted run has no value")


ERRORS: dict[type[AioreactorError], tuple[AioreactorError, str]] = {
    type(error): (error, text)
    for error, text in [
        (AioreactorError("x"), "x"),
        (DefinitionError("R", ["a", "b"]), "R has 2 problems:"),
        (InputValidationError("R", {"a": ["x", "y"], "*": ["z"]}), "invalid values for R: a: x, y; *: z"),
        (OutputValidationError("s", "bad"), "invalid values for the result of step 's': *: bad"),
        (ArgumentError("s", "p", "KeyError: 'k'"), "step 's': could not resolve 'p': KeyError: 'k'"),
        (StepError("declined"), "declined"),
        (StepTimeout("s", 1.5), "step 's' did not finish within its timeout of 1.5 s"),
        (InterruptTimeout("s", 1.5), "interrupt 's' was not answered within its timeout of 1.5 s"),
        (CorrelationTaken("s", "c", "r"), "interrupt 's': run r waits for the correlation id 'c' already"),
        (DeadlineExceeded("R", 60.0), "R did not finish within its deadline of 60 s"),
        (StepCancelled("s", "because"), "step 's' was cancelled: because"),
        (ReactorFailed(Failure(ValueError("x"), "s")), "x"),
        (no_value(), "the run has no value: Halt(reason='enough'"),
        (ContentionError("k", "text"), "text"),
        (LockUnavailable("k", "text"), "text"),
        (SemaphoreUnavailable("k", "text"), "text"),
        (
            RateLimited("k", retry_after=2.5, window="minute", limit=3),
            "rate limit 'k': 3 per minute reached, retry in 2.5 s",
        ),
        (OutOfTurn("k", "text"), "text"),
        (LeaseLost("k", "expired"), "the hold of 'k' was lost: expired"),
        (OwnershipLost("r", "taken"), "run r belongs to another execution now: taken"),
        (RecoveriesExhausted("r", 11), "run r was taken over 11 times in a row"),
        (StoreRequired("running R", ["a", "b"]), "running R needs a store (a; b). Configure one: "),
        (ResultsNotLoaded(7), "these are the results of 7 elements, which are in the store"),
        (RunNotFound("r"), "no run 'r'"),
        (NotResumable("r", "running", "wait"), "run r is running: wait"),
        (AlreadyResumed("r", "s"), "interrupt 's' of run r was resumed already"),
        (IdempotencyConflict("k"), "'k' was used before with other inputs"),
        (UnitTimeout("u", 3.0), "unit 'u' had no outcome after 3 s"),
        (PlanChanged("r", ["a", "b"]), "run r has steps that the code does not: a, b"),
        (PayloadTooLarge("s", 10, 5), "the value of 's' takes 10 bytes, more than max_value_bytes=5"),
        (SerializationError("s", "no"), "s: no"),
        (UnknownReactor("R", "why"), "no reactor 'R' is known: why"),
        (UnknownRateLimit("l"), "no rate limit named 'l'"),
    ]
}


def test_every_public_error_is_listed_here() -> None:
    public = {one for one in vars(aioreactor).values() if isinstance(one, type) and issubclass(one, AioreactorError)}
    assert set(ERRORS) == public


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "again", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy, copy.deepcopy], ids=["p", "c", "d"]
)
def test_every_error_survives_pickling_and_copying(kind: type[AioreactorError], again: Callable[[Any], Any]) -> None:
    error, text = ERRORS[kind]
    back = again(error)
    assert type(back) is kind
    assert back.args == error.args
    assert str(back) == str(error)
    assert text in str(error)
    assert set(vars(back)) == set(vars(error))
    assert {name: repr(item) for name, item in vars(back).items()} == {
        name: repr(item) for name, item in vars(error).items()
    }


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_says_in_its_docstring_what_it_is(kind: type[AioreactorError]) -> None:
    assert "__doc__" in vars(kind)
    assert kind.__doc__


def test_a_subclass_of_the_users_with_another_signature_survives_pickling() -> None:
    back = pickle.loads(pickle.dumps(OwnError(3, hint="x")))
    assert (type(back), back.number, back.hint, str(back)) == (OwnError, 3, "x", "number 3")


class OwnError(AioreactorError):
    def __init__(self, number: int, *, hint: str) -> None:
        self.number = number
        self.hint = hint
        super().__init__(f"number {number}")


def test_the_tree() -> None:
    assert issubclass(OutputValidationError, InputValidationError)
    assert issubclass(NoValue, ReactorFailed)
    contention = {LockUnavailable, SemaphoreUnavailable, RateLimited, OutOfTurn}
    assert {kind for kind in ERRORS if issubclass(kind, ContentionError)} == contention | {ContentionError}
    assert all(issubclass(kind, AioreactorError) for kind in ERRORS)
    final = {kind for kind in ERRORS if getattr(kind, "retryable", True) is False}
    assert final >= {InputValidationError, ArgumentError, DeadlineExceeded, StepCancelled, SerializationError}
    assert not final & {StepTimeout, LockUnavailable, RateLimited, StepError}


def test_store_required_says_what_to_configure() -> None:
    text = str(StoreRequired("this"))
    assert text.startswith("this needs a store. Configure one: aioreactor.configure(redis_url=")
    assert "AIOREACTOR_REDIS_URL" in text
    assert 'pip install "aioreactor[embedded]"' in text


ERROR = ValueError("broken")
OUTCOMES: list[tuple[Any, bool, str]] = [
    (Success(3), True, "Success(value=3)"),
    (Skipped(), True, "Skipped(value=None)"),
    (Skipped("x"), True, "Skipped(value='x')"),
    (Halt("enough", "s"), True, "Halt(reason='enough', step='s')"),
    (Failure(ERROR, "a.b"), False, "Failure(ValueError('broken'), step='a.b')"),
    (Failure("declined"), False, "Failure(StepError('declined'), step=None)"),
    (
        Failure(ERROR, "a", rollback_failures=[RollbackFailure("b", "undo", "raised", "x")]),
        False,
        "Failure(ValueError('broken'), step='a', rollback_failures=1)",
    ),
    (Dispatched("j"), True, "Dispatched(job_id='j')"),
    (
        Paused([OpenInterrupt("a")]),
        True,
        "Paused(interrupts=(OpenInterrupt(name='a', correlation_id=None, deadline=None),))",
    ),
]


@pytest.mark.parametrize(("outcome", "ok", "shown"), OUTCOMES, ids=lambda one: type(one).__name__)
def test_outcomes_are_frozen_slotted_and_read_well(outcome: Any, ok: bool, shown: str) -> None:
    assert outcome.ok is ok
    assert outcome.halted is isinstance(outcome, Halt)
    assert repr(outcome) == shown
    assert not hasattr(outcome, "__dict__")
    changes: tuple[Callable[[], None], ...] = (
        lambda: setattr(outcome, "value", 1),
        lambda: setattr(outcome, "new", 1),
        lambda: delattr(outcome, "ok"),
    )
    for change in changes:
        with pytest.raises(AttributeError, match="is frozen"):
            change()


@pytest.mark.parametrize(("outcome", "ok", "shown"), OUTCOMES, ids=lambda one: type(one).__name__)
def test_outcomes_survive_pickling_and_copying(outcome: Any, ok: bool, shown: str) -> None:
    for back in (pickle.loads(pickle.dumps(outcome)), copy.copy(outcome), copy.deepcopy(outcome)):
        assert (type(back), repr(back), back.ok) == (type(outcome), shown, ok)
        assert (back.run_id, back.reactor, back.results, back.trace) == ("", "", {}, ())


def test_outcomes_are_equal_by_their_fields() -> None:
    assert Success(3) == Success(3)
    assert hash(Success(3)) == hash(Success(3))
    assert Success(3) != Skipped(3)
    assert Success(3) != Success(4)
    assert Failure(ERROR, "a") == Failure(ERROR, "a")
    assert Failure(ERROR, "a") != Failure(ERROR, "b")
    assert Failure(ERROR, "a") != Failure(ValueError("broken"), "a")


def test_matching_by_position_and_by_name() -> None:
    found = []
    for outcome, _, _ in OUTCOMES:
        match outcome:
            case Success(value) | Skipped(value):
                found.append(value)
            case Halt(reason, step):
                found.append((reason, step))
            case Failure(error=error, step=step):
                found.append((str(error), step))
            case Dispatched(job_id):
                found.append(job_id)
            case Paused((only,)):
                found.append(only.name)
    assert found == [
        3,
        None,
        "x",
        ("enough", "s"),
        ("broken", "a.b"),
        ("declined", None),
        ("broken", "a"),
        "j",
        "a",
    ]


def test_unwrap() -> None:
    assert (Success(3).unwrap(), Skipped(4).unwrap()) == (3, 4)
    failure = Failure(ERROR, "a")
    with pytest.raises(ReactorFailed) as failed:
        failure.unwrap()
    assert failed.value.failure is failure
    assert failed.value.__cause__ is ERROR
    for outcome in (Halt("x"), Dispatched("j"), Paused()):
        with pytest.raises(NoValue) as none:
            outcome.unwrap()
        assert none.value.outcome is outcome
        assert isinstance(none.value.failure, Failure)


def test_a_failure_takes_an_exception_or_a_text() -> None:
    assert isinstance(Failure("x").error, StepError)
    assert Failure("x", retry=False).retryable is False
    assert Failure("x").retryable is True
    with pytest.raises(TypeError, match=r"^Failure takes an exception or a text, not int$"):
        Failure(3)  # type: ignore[arg-type]


class Outer:
    class Inner(Exception): ...


def test_what_a_failure_tells() -> None:
    other = KeyError("k")
    entry = RollbackFailure("b", "undo", "raised", "text")
    failure = Failure(
        ERROR, "a", errors=[ERROR, other], inputs={"n": 1}, arguments={"m": 2}, attempts=3, rollback_failures=[entry]
    )
    assert (failure.error_type, failure.message) == ("ValueError", "broken")
    assert Failure(Outer.Inner()).error_type == f"{__name__}.Outer.Inner"
    assert failure.errors == (ERROR, other)
    assert Failure(ERROR).errors == (ERROR,)
    assert (failure.location, failure.field_errors) == (None, {})
    assert failure.rollback_failures == [entry]
    shown = failure.to_dict()
    assert {
        key: shown[key] for key in ("step", "error_type", "message", "errors", "attempts", "inputs", "arguments")
    } == {
        "step": "a",
        "error_type": "ValueError",
        "message": "broken",
        "errors": ["ValueError: broken", "KeyError: 'k'"],
        "attempts": 3,
        "inputs": {"n": 1},
        "arguments": {"m": 2},
    }
    assert shown["rollback_failures"] == [
        {
            "step": "b",
            "kind": "undo",
            "reason": "raised",
            "message": "text",
            "key": None,
            "map_step": None,
            "element": None,
        }
    ]
    bad = InputValidationError("R", {"a": ["x"]})
    assert Failure(bad).field_errors == {"a": ["x"]}


RAW = [
    (1.0, "run", "a", 1, ""),
    (2.0, "run", "m[2].pay", 1, ""),
    (3.0, "undo", "trip.hotel", 1, ""),
    (4.0, "run", "a", 2, "x"),
]


def test_a_trace_is_a_tuple_that_filters_and_reads_well() -> None:
    trace = Trace.of(RAW)
    assert str(trace) == "run:a run:m[2].pay undo:trip.hotel run:a"
    assert repr(trace) == "<Trace run:a run:m[2].pay undo:trip.hotel run:a>"
    assert trace[3] == TraceEntry(3, 4.0, "run", "a", 2, "x")
    assert isinstance(trace, tuple)
    only = trace.only("undo", "compensate")
    assert (type(only), only) == (Trace, (TraceEntry(2, 3.0, "undo", "trip.hotel"),))
    assert str(trace.only("run")) == "run:a run:m[2].pay run:a"
    assert [entry.seq for entry in trace.only("run")] == [0, 1, 3]
    assert trace.only() == ()
    back = pickle.loads(pickle.dumps(trace))
    assert (type(back), back) == (Trace, trace)
    assert str(Trace()) == ""


BROKEN = Failure(ERROR, "m[2]")
RESULTS = MapResults([Success("a"), Skipped("b"), BROKEN, Success("d")])


async def test_map_results() -> None:
    assert len(RESULTS) == 4
    assert list(RESULTS) == ["a", "b", BROKEN, "d"]
    assert [one async for one in RESULTS] == ["a", "b", BROKEN, "d"]
    assert (RESULTS[0], RESULTS[1], RESULTS[2], RESULTS[-1]) == ("a", "b", BROKEN, "d")
    assert RESULTS.failures() == [(2, BROKEN)]
    assert RESULTS.outcomes() == [Success("a"), Skipped("b"), BROKEN, Success("d")]
    assert (RESULTS.succeeded, RESULTS.failed, RESULTS.skipped) == (2, 1, 1)
    assert RESULTS.values() == ["a", "d"]
    assert repr(RESULTS) == "<MapResults of 4: 2 succeeded, 1 failed, 1 skipped>"
    with pytest.raises(IndexError):
        _ = RESULTS[4]


def test_map_results_are_values() -> None:
    assert MapResults([Success(1)]) == MapResults([Success(1)])
    assert MapResults([Success(1)]) != MapResults([Skipped(1)])
    assert MapResults() != ()
    assert pickle.loads(pickle.dumps(MapResults([Success(1)]))) == MapResults([Success(1)])
    with pytest.raises(TypeError, match="unhashable"):
        hash(RESULTS)
    empty: MapResults[int] = MapResults()
    assert (len(empty), empty.values(), empty.failures(), empty.outcomes()) == (0, [], [], [])


def test_rollback_failures_are_tuples_with_names() -> None:
    entry = RollbackFailure("a.b", "undo_all", "element_in_flight", "text", map_step="m", element=3)
    assert RollbackFailure._fields == ("step", "kind", "reason", "message", "key", "map_step", "element")
    assert entry == ("a.b", "undo_all", "element_in_flight", "text", None, "m", 3)
