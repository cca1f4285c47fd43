"""The example's signature, against another way to make it, and against whatever is not quite it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from tests.integration.examples.kit import EXAMPLES, SECRET, signed

NOW = 1_800_000_000.5


@pytest.fixture(scope="module")
def signature() -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module("checkout.signature")
    finally:
        sys.path.remove(str(EXAMPLES))
        for name in [name for name in sys.modules if name.partition(".")[0] == "checkout"]:
            del sys.modules[name]


@given(st.text(max_size=50), st.integers(0, 300))
def test_what_both_sides_make_is_the_same(signature: ModuleType, text: str, late: int) -> None:
    body = text.encode("utf-8", "replace")
    header = signature.sign(SECRET.encode(), body, NOW)
    assert header == signed(body, at=NOW)
    for now in (NOW + late - 0.5, NOW - late + 0.5):
        signature.verify(SECRET.encode(), body, header, now)


@given(st.binary(max_size=50), st.binary(max_size=50), st.binary(min_size=1, max_size=20))
def test_another_body_or_secret_is_refused(signature: ModuleType, body: bytes, other: bytes, secret: bytes) -> None:
    assume(body != other)
    assume(secret.rstrip(b"\0") != SECRET.encode())
    for signing, sent in ((SECRET.encode(), other), (secret, body)):
        with pytest.raises(signature.BadSignature):
            signature.verify(SECRET.encode(), body, signature.sign(signing, sent, NOW), NOW)


@given(st.data())
def test_any_other_header_is_refused(signature: ModuleType, data: st.DataObject) -> None:
    header = signature.sign(SECRET.encode(), b"body", NOW)
    place = data.draw(st.integers(0, len(header)))
    end = data.draw(st.integers(place, len(header)))
    mended = header[:place] + data.draw(st.text(max_size=5)) + header[end:]
    assume(mended != header)
    with pytest.raises(signature.BadSignature):
        signature.verify(SECRET.encode(), b"body", mended, NOW)


@pytest.mark.parametrize("now", [NOW + 301, NOW - 302, 0.0])
def test_one_that_is_too_old_or_yet_to_come_is_refused(signature: ModuleType, now: float) -> None:
    with pytest.raises(signature.BadSignature, match="too long ago"):
        signature.verify(SECRET.encode(), b"body", signature.sign(SECRET.encode(), b"body", NOW), now)
