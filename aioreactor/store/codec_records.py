"""What surrounds stored values: the format version, encryption, the size bound."""

from __future__ import annotations

from typing import Protocol

from msgspec.msgpack import Ext

from aioreactor.errors import PayloadTooLarge, SerializationError
from aioreactor.store.codec_wire import Code, Unencodable, as_ext, pack_plain

FORMAT = 1
"""Version of everything this package writes. Raised when older code could not read it any more."""

DEFAULT_MAX_VALUE_BYTES = 1024 * 1024
_MARK = 0xC1
"""The one byte that never begins a MessagePack item: what begins with it has a version."""


class Cipher(Protocol):
    """Encrypts what is marked `Redact` before it is stored (``Settings.cipher``).

    Both methods are called on the event loop's thread with whole values. ``decrypt`` should verify (AEAD, Fernet) and
    raise when it cannot; several keys for rotation are its own business.
    """

    def encrypt(self, data: bytes, /) -> bytes:
        """The data, unreadable."""
        ...

    def decrypt(self, data: bytes, /) -> bytes:
        """The data again."""
        ...


def stamp(data: bytes) -> bytes:
    """A record with the version of its format in front."""
    return bytes((_MARK, FORMAT)) + data


def unstamp(data: bytes, where: str = "a record") -> bytes:
    """The record without its version; one without a version is older than versions are.

    Raises:
        SerializationError: a newer version of the library wrote it.
    """
    if not data:
        raise SerializationError(where, "is empty")
    if data[0] != _MARK:
        return data
    if len(data) < 3:
        raise SerializationError(where, "is cut off")
    check_format(data[1], where)
    return data[2:]


def check_format(version: int, where: str = "a record") -> None:
    """Refuse what only newer code understands.

    Raises:
        SerializationError: a newer version of the library wrote it.
    """
    if version > FORMAT:
        raise SerializationError(
            where,
            f"has format {version}, and this version of aioreactor reads up to {FORMAT}: a newer one wrote it. "
            "Upgrade here, or let the newer processes finish it",
        )


def seal(data: bytes, cipher: Cipher | None) -> bytes:
    """The value encrypted; as it is when there is no cipher."""
    if cipher is None:
        return data
    try:
        return pack_plain(Ext(Code.SEALED, cipher.encrypt(data)))
    except Exception as error:
        raise Unencodable(f"Settings.cipher could not encrypt it: {type(error).__name__}") from error


def unseal(data: bytes, cipher: Cipher | None, where: str = "the value") -> bytes:
    """The value in the clear. One that was stored before there was a cipher is taken as it is.

    Raises:
        SerializationError: there is no cipher, or it does not fit.
    """
    try:
        found = as_ext(data)
    except Exception as error:
        raise SerializationError(where, f"is damaged: {error}") from error
    if found is None or found.code != Code.SEALED:
        return data
    if cipher is None:
        raise SerializationError(where, "is encrypted; configure the cipher that wrote it (Settings.cipher)")
    try:
        return cipher.decrypt(bytes(found.data))
    except Exception as error:
        raise SerializationError(where, f"Settings.cipher could not decrypt it: {type(error).__name__}") from error


def check_size(step: str, data: bytes, limit: int) -> bytes:
    """The data, when it is small enough.

    Raises:
        PayloadTooLarge: it is not.
    """
    if len(data) > limit:
        raise PayloadTooLarge(step, len(data), limit)
    return data
