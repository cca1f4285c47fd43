"""Random values come back; random bytes give a clear error and nothing else."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioreactor import SerializationError
from aioreactor.store.codec import FieldsCodec, codec_for, decode, encode
from aioreactor.store.codec_compare import Mode, difference
from aioreactor.store.codec_records import unseal, unstamp
from aioreactor.store.failures_data import pack_failure
from aioreactor.store.failures_revive import unpack_failure
from tests.unit.store.types_kit import SAMPLES, Card, Color, Line, Money, Node, Pair, Point

common = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ints = st.integers(-(2**130), 2**130)
scalars = st.none() | st.booleans() | ints | st.floats() | texts | st.binary(max_size=20)
keys = st.one_of(texts, ints, st.booleans(), st.binary(max_size=8))
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
naive = st.datetimes()
aware = st.datetimes(timezones=st.just(dt.UTC))
decimals = st.decimals(allow_nan=True)
money = st.builds(Money, decimals, texts)
cards = st.builds(Card, texts, st.dates())
payments = money | cards
nodes = st.recursive(
    st.builds(Node, texts, st.none() | payments),
    lambda inner: st.builds(Node, texts, payments, st.lists(inner, max_size=3)),
    max_leaves=6,
)
Typed = tuple[Any, st.SearchStrategy[Any]]
TYPED: list[Typed] = [
    (int, ints),
    (float, st.floats()),
    (str, texts),
    (list[int | float | bool | str | None], st.lists(scalars.filter(lambda v: not isinstance(v, bytes)), max_size=5)),
    (dict[int, list[bytes]], st.dictionaries(ints, st.lists(st.binary(max_size=5), max_size=3), max_size=4)),
    (set[tuple[int, str]], st.sets(st.tuples(ints, texts), max_size=4)),
    (frozenset[dt.date], st.frozensets(st.dates(), max_size=4)),
    (list[dt.datetime], st.lists(naive | aware, max_size=4)),
    (dt.timedelta, st.timedeltas()),
    (dt.time, st.times()),
    (Decimal, decimals),
    (list[Decimal | float | int], st.lists(decimals | st.floats() | ints, max_size=4)),
    (Money | Card, payments),
    (dict[str, list[Money | Card]], st.dictionaries(texts, st.lists(payments, max_size=3), max_size=3)),
    (tuple[Color, Pair], st.tuples(st.sampled_from(Color), st.builds(Pair, ints, texts))),
    (list[Point | Line], st.lists(st.builds(Point, ints, st.floats()) | st.builds(Line, ints), max_size=4)),
    (Node, nodes),
    (list[dt.datetime | str | dt.date], st.lists(naive | st.dates() | texts, max_size=4)),
]


@given(plain)
@common
def test_plain_data_comes_back_exactly(value: Any) -> None:
    assert difference(value, decode(encode(value)), Mode.EXACT) is None


@pytest.mark.parametrize(("annotation", "values"), TYPED, ids=[str(a).replace("typing.", "")[:40] for a, _ in TYPED])
def test_typed_data_comes_back_exactly(annotation: Any, values: st.SearchStrategy[Any]) -> None:
    codec = codec_for(annotation)

    @given(values)
    @common
    def check(value: Any) -> None:
        assert difference(value, codec.decode(codec.encode(value)), Mode.EXACT) is None

    check()


@given(st.data(), st.sampled_from(TYPED), st.sampled_from(TYPED))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_value_under_another_annotation_is_refused_or_comes_back_equal(
    data: st.DataObject, source: Typed, target: Typed
) -> None:
    value = data.draw(source[1])
    codec = codec_for(target[0])
    try:
        encoded = codec.encode(value)
    except SerializationError:
        return
    assert difference(value, codec.decode(encoded)) is None


READERS = [(name, codec_for(annotation)) for name, annotation, _ in SAMPLES]
ENCODED = [codec_for(annotation).encode(value) for _, annotation, value in SAMPLES]


def _only_clear_errors(read: Callable[[bytes], Any], data: bytes) -> None:
    with contextlib.suppress(SerializationError):
        read(data)


def _mutated(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(4):
            case 0 if found:
                found[at % len(found)] = rng.randrange(256)
            case 1:
                found[at:at] = rng.randbytes(rng.randint(1, 4))
            case 2:
                del found[at : at + rng.randint(1, 4)]
            case _:
                found[at:at] = data[: rng.randrange(len(data) + 1)]
    return bytes(found)


@given(st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_random_bytes_give_a_clear_error(data: bytes) -> None:
    fields = FieldsCodec({"a": int, "b": Money | Card})
    for _, codec in READERS:
        _only_clear_errors(codec.decode, data)
    for read in (decode, unpack_failure, unstamp, fields.decode):
        _only_clear_errors(read, data)
    _only_clear_errors(lambda found: unseal(found, None), data)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_data_gives_a_clear_error(seed: int) -> None:
    rng = random.Random(seed)
    for (_, codec), data in zip(READERS, ENCODED, strict=True):
        for _ in range(8):
            damaged = _mutated(rng, data)
            _only_clear_errors(codec.decode, damaged)
            _only_clear_errors(decode, damaged)
            _only_clear_errors(rng.choice(READERS)[1].decode, damaged)


@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_failure_gives_a_clear_error_or_an_exception(seed: int) -> None:
    rng = random.Random(seed)
    try:
        try:
            raise OSError(2, "no", "/x")
        except OSError as inner:
            raise ExceptionGroup("both", [ValueError(1, (2, 3)), KeyError("k")]) from inner
    except ExceptionGroup as caught:
        data = pack_failure(caught)
    for _ in range(150):
        try:
            found = unpack_failure(_mutated(rng, data))
        except SerializationError:
            continue
        assert isinstance(found, BaseException)


@pytest.mark.parametrize(
    "head", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x05"]
)
def test_claimed_sizes_are_not_believed(head: bytes) -> None:
    for _, codec in READERS[::7]:
        with pytest.raises(SerializationError):
            codec.decode(head + b"\x01")


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\xd4\x02", b"\x91\x91\x92\x01"])
def test_bottomless_bytes_are_refused(opening: bytes) -> None:
    for _, codec in [*READERS[::9], ("plain", codec_for())]:
        with pytest.raises(SerializationError):
            codec.decode(opening * 200_000)


def test_extensions_nested_in_each_other_without_end_are_refused() -> None:
    import msgspec

    data = b"\xc0"
    for _ in range(3000):
        data = msgspec.msgpack.encode(msgspec.msgpack.Ext(2, data))
    with pytest.raises(SerializationError):
        decode(data)
