"""Outcomes as values of results, and what surrounds values: versions, encryption, inputs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Annotated, Any

import pytest

from aioreactor import Dispatched, Failure, Halt, MapResults, Paused, Redact, SerializationError, Skipped, Success
from aioreactor.redaction import Scrubber
from aioreactor.results import OpenInterrupt, RollbackFailure
from aioreactor.store.codec import FieldsCodec, codec_for, decode, encode
from aioreactor.store.codec_records import FORMAT, check_format, seal, stamp, unseal, unstamp
from aioreactor.trace import RunRecord
from tests.unit.store.types_kit import Card, Money, Secretive

RECORD = RunRecord("r1", "Checkout", "failed", {"a": 1}, [(1.5, "run", "a", 1, ""), (2.0, "failure", "a", 1, "x")])
MONEY = Money(Decimal(1), "E")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def made_failure() -> Failure:
    return Failure(
        raised(ValueError("bad tok-1")),
        "a.b",
        retry=False,
        errors=[KeyError("first"), ValueError("other")],
        inputs={"order": 7, "thing": object()},
        arguments={"when": dt.datetime(2024, 1, 1)},
        attempts=3,
        rollback_failures=[RollbackFailure("a.b", "undo", "raised", "tok-1", element=2)],
        _scrub=Scrubber(["tok-1"]),
        _record=RECORD,
    )


@pytest.mark.parametrize("annotation", [None, Failure, Failure | Money, Money | Failure | None, Any])
def test_a_failure_comes_back_with_all_that_people_read(annotation: Any) -> None:
    failure = made_failure()
    codec = codec_for() if annotation is None else codec_for(annotation)
    data = codec.encode(failure)
    assert b"tok-1" not in data
    found = codec.decode(data)
    assert type(found) is Failure
    assert (found.step, found.attempts, found.retryable) == ("a.b", 3, False)
    assert found.message == "bad [redacted]"
    assert found.error_type == "ValueError"
    assert found.traceback == failure.traceback
    assert found.location == failure.location
    assert found.location is not None
    assert found.location.function == "raised"
    assert [repr(error) for error in found.errors][1:] == ["KeyError('first')", "ValueError('other')"]
    assert found.errors[0] is found.error
    assert found.inputs["order"] == 7
    assert "object object" in found.inputs["thing"]
    assert found.arguments == {"when": dt.datetime(2024, 1, 1)}
    assert found.rollback_failures == [RollbackFailure("a.b", "undo", "raised", "[redacted]", element=2)]
    assert (found.run_id, found.reactor, found.status) == ("r1", "Checkout", "failed")
    assert str(found.trace) == "run:a failure:a"
    assert found.to_dict()["traceback"] == failure.traceback
    assert found.summary() == failure.summary()


def test_a_failure_stored_twice_is_the_same() -> None:
    once = decode(encode(made_failure(), Failure), Failure)
    twice = decode(encode(once, Failure), Failure)
    assert twice.to_dict() | {"inputs": 0} == once.to_dict() | {"inputs": 0}


@pytest.mark.parametrize(
    "outcome",
    [
        Success(1, _record=RECORD),
        Skipped(None),
        Halt(("why", dt.date(2024, 1, 1)), "s", rollback_failures=[RollbackFailure("a", "undo", "raised", "x")]),
        Dispatched("job"),
        Paused([OpenInterrupt("a", "c", 1.5), OpenInterrupt("b")], _record=RECORD),
        MapResults([Success(1), Skipped(2)]),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_outcomes_come_back_with_and_without_annotation(outcome: Any) -> None:
    for annotation in (Any, type(outcome), list[Any]):
        value = [outcome] if annotation == list[Any] else outcome
        back = decode(encode(value, annotation), annotation)
        assert back == value
    if hasattr(outcome, "trace"):
        found = decode(encode(outcome))
        assert (found.run_id, found.trace) == (outcome.run_id, outcome.trace)


def test_the_values_of_outcomes_have_their_types() -> None:
    results = MapResults(
        [Success(MONEY), Failure(ValueError("x"), attempts=2), Skipped(Card("1", dt.date(2020, 1, 1)))]
    )
    back = decode(encode(results, MapResults[Money | Card]), MapResults[Money | Card])
    assert back[0] == MONEY
    assert back[2] == Card("1", dt.date(2020, 1, 1))
    assert (back.succeeded, back.failed, back.skipped) == (1, 1, 1)
    assert str(back[1].error) == "x"
    assert back[1].attempts == 2
    nested = {"a": [Success(MONEY)]}
    assert decode(encode(nested, dict[str, list[Success[Money]]]), dict[str, list[Success[Money]]]) == nested


def test_an_outcome_of_another_kind_is_refused() -> None:
    with pytest.raises(SerializationError, match="Halt is no Success"):
        encode(Halt("x"), Success[int])
    with pytest.raises(SerializationError, match="'Halt' is no Success"):
        decode(encode(Halt("x"), Halt), Success[int])
    with pytest.raises(SerializationError, match="Expected `int`, got `str`"):
        encode(Success("x"), Success[int])


# ------------------------------------------------------------------ versions


def test_a_newer_format_is_refused_and_an_older_one_is_read() -> None:
    assert unstamp(stamp(b"\x01")) == b"\x01"
    assert unstamp(b"\x01") == b"\x01"
    assert unstamp(bytes((0xC1, 0)) + b"\x01") == b"\x01"
    with pytest.raises(SerializationError, match=f"run r1: has format {FORMAT + 1}.*reads up to {FORMAT}"):
        unstamp(bytes((0xC1, FORMAT + 1)) + b"\x01", "run r1")
    check_format(FORMAT)
    with pytest.raises(SerializationError, match="Upgrade here"):
        check_format(FORMAT + 1)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xc1\x01"])
def test_a_record_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(SerializationError):
        unstamp(data)


def test_an_unknown_extension_is_refused() -> None:
    import msgspec

    with pytest.raises(SerializationError, match="extension type 99 is not known here"):
        decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(99, b"x")))


# ------------------------------------------------------------------ encryption


class Xor:
    """No cipher at all, but one that can be told from plain data."""

    def __init__(self, key: int = 0x5A) -> None:
        self.key = key

    def encrypt(self, data: bytes) -> bytes:
        return bytes((self.key,)) + bytes(byte ^ self.key for byte in data)

    def decrypt(self, data: bytes) -> bytes:
        if data[:1] != bytes((self.key,)):
            raise ValueError("another key")
        return bytes(byte ^ self.key for byte in data[1:])


def test_marked_fields_are_encrypted_and_the_others_are_not() -> None:
    codec = FieldsCodec({"order": str, "card": Annotated[str, Redact], "who": Secretive}, redacted=["card"])
    values = {"order": "order-7", "card": "4242-4242", "who": Secretive("ann", "tok-9")}
    data = codec.encode(values, cipher=Xor())
    assert b"order-7" in data
    assert b"4242" not in data
    assert b"tok-9" not in data
    assert codec.decode(data, cipher=Xor()) == values
    plain = codec.encode(values)
    assert b"4242" in plain
    assert codec.decode(plain, cipher=Xor()) == values, "stored before there was a cipher"


def test_a_result_with_a_marked_field_inside_is_encrypted() -> None:
    codec = codec_for(list[Secretive])
    assert codec.secret
    data = codec.store([Secretive("ann", "tok-9")], step="a", cipher=Xor())
    assert b"tok-9" not in data
    assert codec.restore(data, step="a", cipher=Xor()) == [Secretive("ann", "tok-9")]
    assert not codec_for(Money).secret


def test_without_the_right_cipher_the_reason_is_clear() -> None:
    codec = codec_for(Secretive)
    data = codec.store(Secretive("ann", "t"), step="pay", cipher=Xor())
    with pytest.raises(SerializationError, match="step 'pay': is encrypted; configure the cipher"):
        codec.restore(data, step="pay")
    with pytest.raises(SerializationError, match="could not decrypt it: ValueError"):
        codec.restore(data, step="pay", cipher=Xor(1))
    assert unseal(seal(b"\x01", None), None) == b"\x01"


# ------------------------------------------------------------------ fields


def test_a_field_that_cannot_be_stored_is_named() -> None:
    codec = FieldsCodec({"a": int, "b": Money})
    with pytest.raises(SerializationError, match="input 'b'"):
        codec.encode({"a": 1, "b": "x"})
    with pytest.raises(SerializationError, match="input 'a'"):
        FieldsCodec({"a": str}).decode(codec.encode({"a": 1}))
    with pytest.raises(SerializationError, match="inputs: cannot be read"):
        codec.decode(b"\xff")


def test_fields_that_are_not_declared_any_more_are_left_out() -> None:
    data = FieldsCodec({"a": int, "b": Money}).encode({"a": 1, "b": MONEY})
    assert FieldsCodec({"a": int}).decode(data) == {"a": 1}
