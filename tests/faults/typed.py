"""Reactors whose steps return values of every type that can be stored, and of some that cannot."""

from __future__ import annotations

import threading
from typing import Any

from aioreactor import Context, Reactor, step
from tests.faults.reactors import noted, write
from tests.unit.store.types_kit import SAMPLES

SIGNALS = {"success", "skipped", "halt", "value or signal"}
"""What a step returns of these is not its value."""

VALUES = {f"s{number}": sample for number, sample in enumerate(SAMPLES) if sample[0] not in SIGNALS}


def _returning(annotation: Any, value: Any) -> Any:
    async def body(self: Any) -> Any:
        return value

    body.__annotations__["return"] = annotation
    return step(body)


def _typed() -> Any:
    steps = {name: _returning(annotation, value) for name, (_, annotation, value) in VALUES.items()}
    make: Any = type(Reactor)
    return make("Typed", (Reactor,), {"__module__": __name__, "__qualname__": "Typed", **steps})


Typed: Any = _typed()


def _keeps(after: Any, value: Any, annotation: Any = Any) -> Any:
    """A step whose value cannot be kept."""

    async def body(self: Any, ctx: Context) -> Any:
        await write(ctx, "do")
        return value()

    async def compensate(self: Any, ctx: Context, error: BaseException) -> None:
        await write(ctx, "comp")

    async def undo(self: Any, ctx: Context, result: Any) -> None:
        await write(ctx, "undo")

    body.__annotations__["return"] = annotation
    node = step(after=[after])(body)
    node.compensate(compensate)
    node.undo(undo)
    return node


class Opaque(Reactor):
    a = noted()
    b = _keeps(a, threading.Lock)
    c = noted(after=[b])


class Deep(Reactor):
    a = noted()
    b = _keeps(a, lambda: {"deep": [{"deeper": object()}]})
    c = noted(after=[b])


class TooLarge(Reactor):
    a = noted()
    b = _keeps(a, lambda: b"x" * (2 << 20), bytes)
    c = noted(after=[b])


class Misannotated(Reactor):
    a = noted()
    b = _keeps(a, lambda: "no number", int)
    c = noted(after=[b])


UNKEPT = {cls.__name__: cls for cls in (Opaque, Deep, TooLarge, Misannotated)}
