"""Values to bytes and back, by annotation: what a step returned is what its readers get in any other process.

    codec = codec_for(Reservation)
    data = codec.encode(reservation, "step 'reserve'")
    codec.decode(data)  # equal, and a Reservation

The format is MessagePack. There is no pickle, and nothing in stored bytes is ever imported or called: classes come
from annotations. Overview, from the outside in: here the codec and its check; `codec_records` versions, encryption and
bounds; `codec_compile` how an annotation becomes a coder, and `codec_coders` the coders; `codec_wire` the bytes;
`codec_compare` whether a value came back; `codec_outcomes`, `failures_data`, `failures_revive` outcomes and exceptions.

**What is checked.** ``encode`` reads back what it wrote and compares, so a value that its annotation could not restore
is refused while the step can still fail and be rolled back. msgspec reads in C, which makes the check about as cheap
as two encodings; a str, int, float, bool or bytes under its own annotation needs none. Reading back runs validators
and ``__post_init__`` once more.

**What changes on the way**, by design: an aware datetime keeps its instant and comes back in UTC; a subclass of a
builtin (``IntEnum`` under ``int``) comes back as the builtin; ``Sequence[T]`` comes back as a list; identity and cycles
are not kept; what is annotated ``Any``, or not at all, comes back as plain data (`ValueCodec.warning` says so).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from aioreactor.definition.annotations import UNKNOWN, text_of
from aioreactor.errors import SerializationError
from aioreactor.store.codec_coders import Coder, Native
from aioreactor.store.codec_compare import Mode, difference
from aioreactor.store.codec_compile import coder_for, mode_for
from aioreactor.store.codec_facts import facts_of
from aioreactor.store.codec_records import DEFAULT_MAX_VALUE_BYTES, Cipher, check_size, seal, unseal
from aioreactor.store.codec_wire import Unencodable, pack_plain

__all__ = ["FieldsCodec", "ValueCodec", "codec_for", "decode", "encode", "plain_data_warning"]

_NEEDS_NO_CHECK = (str, int, float, bool, bytes)
_VALUE = "the value"


class ValueCodec:
    """The codec of one annotation; get it from `codec_for`.

    ``open`` says that parts of its values are not annotated, so that `warning` is worth asking; ``secret`` that a
    field marked `Redact` is somewhere inside, so that values are encrypted when there is a cipher.
    """

    __slots__ = ("_annotation", "_coder", "_exact", "_mode", "_pack", "_read", "open", "secret")

    def __init__(self, annotation: Any) -> None:
        coder = coder_for(annotation)
        facts = facts_of(annotation)
        self._annotation = annotation
        self._coder: Coder = coder
        self._exact = annotation if annotation in _NEEDS_NO_CHECK else None
        self._mode = mode_for(facts)
        self.open = facts.open
        self.secret = facts.secret
        # The straight way into C where there is one.
        self._pack: Callable[[Any], bytes] = coder.encode if isinstance(coder, Native) else coder.pack
        self._read: Callable[[bytes], Any] = coder.decode if isinstance(coder, Native) else coder.unpack

    def encode(self, value: Any, where: str = _VALUE) -> bytes:
        """The value as bytes, sure to be readable again.

        Raises:
            SerializationError: it cannot be encoded, or would come back as something else.
        """
        try:
            data = self._pack(value)
            if type(value) is self._exact or self._read(data) == value:
                return data
        except Exception:  # noqa: S110 - the slow way tells what is wrong, or that nothing is
            pass
        return self._encode_slowly(value, where)

    def _encode_slowly(self, value: Any, where: str) -> bytes:
        try:
            data = self._coder.pack(value)
        except Exception as error:
            raise SerializationError(where, f"cannot be stored: {_reason(error)}") from error
        self._check(value, data, where)
        return data

    def _check(self, value: Any, data: bytes, where: str) -> None:
        try:
            found = difference(value, self._coder.unpack(data), self._mode)
        except Exception as error:
            raise SerializationError(
                where, f"could not be read back as {text_of(self._annotation)}: {_reason(error)}"
            ) from error
        if found is not None:
            raise SerializationError(
                where, f"{found}; return what the annotation {text_of(self._annotation)} says, or change it"
            )

    def decode(self, data: bytes, where: str = _VALUE) -> Any:
        """The value again.

        Raises:
            SerializationError: the bytes are damaged, or do not fit the annotation (any more).
        """
        try:
            return self._read(data)
        except Exception:  # noqa: S110 - as in encode
            pass
        try:
            return self._coder.unpack(data)
        except Exception as error:
            raise SerializationError(
                where, f"cannot be read as {_annotation_text(self._annotation)}: {_reason(error)}"
            ) from error

    def store(
        self, value: Any, *, step: str, limit: int = DEFAULT_MAX_VALUE_BYTES, cipher: Cipher | None = None
    ) -> bytes:
        """What goes to the store for a step's value: checked, encrypted where marked, bounded.

        Raises:
            SerializationError: as `encode` does.
            PayloadTooLarge: it takes more than ``limit`` bytes.
        """
        data = self.encode(value, f"step {step!r}")
        return check_size(step, seal(data, cipher) if self.secret and cipher is not None else data, limit)

    def restore(self, data: bytes, *, step: str, cipher: Cipher | None = None) -> Any:
        """The value of what `store` made.

        Raises:
            SerializationError: as `decode` does; or it is encrypted and cannot be decrypted.
        """
        where = f"the stored value of step {step!r}"
        return self.decode(unseal(data, cipher, where), where)

    def warning(self, value: Any) -> str | None:
        """Which part of a value comes back as something else for want of an annotation, and what to do; else None.

        Walks the value in Python: ask once per step, and only when ``open``.
        """
        if not self.open:
            return None
        try:
            found = difference(value, self._coder.unpack(self._coder.pack(value)), Mode.EXACT)
        except Exception:
            return None
        if found is None:
            return None
        return f"the value {found}: annotate the step's return type, or return plain data"

    def __repr__(self) -> str:
        return f"<ValueCodec of {_annotation_text(self._annotation)}>"


def _annotation_text(annotation: Any) -> str:
    return "plain data" if annotation is UNKNOWN else text_of(annotation)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or contains itself"
    if isinstance(error, UnicodeEncodeError):
        return "a text in it has lone surrogates, which UTF-8 cannot say"
    return str(error) or type(error).__name__


@lru_cache(maxsize=2048)
def _cached(annotation: Any) -> ValueCodec:
    return ValueCodec(annotation)


def codec_for(annotation: Any = UNKNOWN) -> ValueCodec:
    """The codec of an annotation, made once.

    Raises:
        SerializationError: no value of this annotation can be stored.
    """
    try:
        return _cached(annotation)
    except Unencodable as error:
        raise SerializationError(f"the annotation {text_of(annotation)}", str(error)) from error
    except TypeError:  # an annotation that cannot be hashed
        return ValueCodec(annotation)


def encode(value: Any, annotation: Any = UNKNOWN) -> bytes:
    """A value as bytes.

    Raises:
        SerializationError: it cannot be encoded, or its annotation could not read it back.
    """
    return codec_for(annotation).encode(value)


def decode(data: bytes, annotation: Any = UNKNOWN) -> Any:
    """A value from bytes.

    Raises:
        SerializationError: they are damaged or do not fit the annotation.
    """
    return codec_for(annotation).decode(data)


def plain_data_warning(value: Any) -> str | None:
    """For a step without a return annotation: what its value would lose, and the fix; None when nothing."""
    return codec_for(UNKNOWN).warning(value)


class FieldsCodec:
    """A reactor's inputs or a step's arguments: each field by its own annotation, marked ones encrypted."""

    __slots__ = ("_codecs", "_secret")

    def __init__(self, annotations: Mapping[str, Any], redacted: Iterable[str] = ()) -> None:
        self._codecs = {name: codec_for(annotation) for name, annotation in annotations.items()}
        inside = {name for name, codec in self._codecs.items() if codec.secret}
        self._secret = frozenset(redacted) | inside

    def encode(self, values: Mapping[str, Any], *, cipher: Cipher | None = None, where: str = "input") -> bytes:
        """All values in one byte string; fields marked `Redact`, or with marks inside, are encrypted one by one.

        Raises:
            SerializationError: naming the field that cannot be stored.
        """
        rows: dict[str, Raw] = {}
        for name, value in values.items():
            codec = self._codecs.get(name) or codec_for(UNKNOWN)
            data = codec.encode(value, f"{where} {name!r}")
            rows[name] = Raw(seal(data, cipher) if name in self._secret else data)
        return pack_plain(rows)

    def decode(self, data: bytes, *, cipher: Cipher | None = None, where: str = "input") -> dict[str, Any]:
        """The values again. Fields that are not declared any more are left out.

        Raises:
            SerializationError: damaged, encrypted with another key, or of a type that does not fit any more.
        """
        try:
            rows = _rows(data)
        except Exception as error:
            raise SerializationError(f"{where}s", f"cannot be read: {_reason(error)}") from error
        return {
            name: self._codecs[name].decode(unseal(bytes(raw), cipher, f"{where} {name!r}"), f"{where} {name!r}")
            for name, raw in rows.items()
            if name in self._codecs
        }


_rows = msgspec.msgpack.Decoder(dict[str, Raw]).decode
