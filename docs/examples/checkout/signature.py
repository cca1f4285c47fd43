"""Signed webhooks: whoever knows the secret has sent this body, a short while ago. Pure.

The header is ``t=SECONDS,v1=HEX``: when it was sent, and the HMAC-SHA256 of ``SECONDS.BODY``. What is signed is the body as
it came, byte for byte; decoding it and encoding it again would not give the same.
"""

from __future__ import annotations

import hashlib
import hmac
import re

TOLERANCE = 300
"""Seconds by which the clocks of both sides may differ, and for which a message may be under way."""

_HEADER = re.compile(r"t=(?P<at>\d{1,12}),v1=(?P<digest>[0-9a-f]{64})", re.ASCII)


class BadSignature(Exception):
    """The message is not from who knows the secret, or is too old."""


def sign(secret: bytes, body: bytes, at: float) -> str:
    """The header for a body that is sent at this time, in seconds since the epoch."""
    return f"t={int(at)},v1={_digest(secret, body, str(int(at)))}"


def verify(secret: bytes, body: bytes, header: str, now: float) -> None:
    """Check the header that came with a body.

    Raises:
        BadSignature: it is not right. Why is for the log of this side, not for the other.
    """
    found = _HEADER.fullmatch(header)
    if found is None:
        raise BadSignature("the header is missing or not understood")
    # In a time that does not depend on how much of it is right: else one could find it out digit by digit.
    if not hmac.compare_digest(_digest(secret, body, found["at"]), found["digest"]):
        raise BadSignature("the digest is another one")
    if abs(now - int(found["at"])) > TOLERANCE:
        raise BadSignature("it was sent too long ago, or is yet to be sent")


def _digest(secret: bytes, body: bytes, at: str) -> str:
    return hmac.new(secret, at.encode() + b"." + body, hashlib.sha256).hexdigest()
