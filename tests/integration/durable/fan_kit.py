"""The same reactor twice, its map inline and fanned out, and what may be compared of the two."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aioreactor import Context, Failure, FanOut, Halt, MapResults, Outcome, Reactor, Skipped, Success, runs, step
from aioreactor.store.keys import element_of
from tests.integration.durable.kit import Place
from tests.integration.durable.test_background import working

_numbers = itertools.count()
Twin = Callable[..., type[Reactor[Any]]]
ledger: list[str] = []
"""What bodies and rollback actions did, by path from the root of the run that has the map."""
behave: dict[str, Callable[..., Any]] = {}
ONE: dict[str, dict[str, Any]] = {"inline": {"concurrency": 1}, "fan": {"fan_out": FanOut(batch_size=1, chunk=1)}}
"""One element at a time, forward and back."""
WIDE: dict[str, dict[str, Any]] = {"inline": {"concurrency": 64}, "fan": {"fan_out": True}}


def place_of(ctx: Context) -> str:
    """The path of a step from the root of the run that has the map, wherever the element is executed."""
    found = element_of(ctx.run_id)
    if found is None:
        return ctx.path
    _, path, index = found
    return f"{path}[{index}]" if ctx.path == path else f"{path}[{index}].{ctx.path}"


async def act(kind: str, ctx: Context, *given: Any) -> Any:
    place = place_of(ctx)
    ledger.append(f"{kind}:{place}")
    action = behave.get(place if kind == "do" else f"{kind}:{place}")
    found = action(ctx, *given) if action is not None else None
    return await found if isinstance(found, Awaitable) else found


def noted(after: Any = (), **options: Any) -> Any:
    """A step with all three functions."""

    async def body(self: Any, ctx: Context) -> Any:
        found = await act("do", ctx)
        return place_of(ctx) if found is None else found

    async def undo(self: Any, ctx: Context, result: Any) -> None:
        assert result is not None
        await act("undo", ctx)

    async def compensate(self: Any, ctx: Context, error: BaseException) -> None:
        await act("comp", ctx)

    node = step(after=after, **options)(body)
    node.undo(undo)
    node.compensate(compensate)
    return node


def raises(error: BaseException) -> Callable[..., Any]:
    def fail(ctx: Context, *given: Any) -> Any:
        raise error

    return fail


def gives(value: Any) -> Callable[..., Any]:
    return lambda ctx, *given: value


def fails_until(attempt: int) -> Callable[..., Any]:
    def fail(ctx: Context, *given: Any) -> Any:
        if ctx.attempt < attempt:
            raise ValueError(f"attempt {ctx.attempt}")

    return fail


def twins(build: Twin, options: dict[str, dict[str, Any]]) -> dict[str, type[Reactor[Any]]]:
    """The reactor with its map inline, and fanned out."""
    number = next(_numbers)
    return {kind: build(f"fan.{kind}{number}", **options[kind]) for kind in ("inline", "fan")}


@contextlib.asynccontextmanager
async def hands(place: Place, **settings: Any) -> AsyncIterator[Any]:
    """A worker; and a caller that rings in its queue."""
    async with working(place, **settings) as worker, place.another(queue=f"{place.prefix}-queue", **settings):
        yield worker


# ---------------------------------------------------------------------- what may be compared


def plain(value: Any) -> Any:
    """A value, with outcomes as what may be compared of them."""
    if isinstance(value, MapResults):
        return [plain(outcome) for outcome in value.outcomes()]
    if isinstance(value, Skipped):
        return ("skipped", plain(value.value))
    if isinstance(value, (Success, Failure, Halt)):
        return shown(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def _error(error: BaseException) -> Any:
    text = re.sub(r"fan\.(inline|fan)\d+", "R", str(error))
    return (type(error).__name__, text)


def shown(outcome: Any) -> dict[str, Any]:
    """Everything of an outcome that does not say who executed what when."""
    found: dict[str, Any] = {"kind": type(outcome).__name__}
    if isinstance(outcome, Success):
        return {**found, "value": plain(outcome.value)}
    found |= {"errors": [_error(error) for error in outcome.errors], "step": outcome.step}
    found["rollback_failures"] = [tuple(entry) for entry in outcome.rollback_failures]
    if isinstance(outcome, Halt):
        return {**found, "reason": outcome.reason}
    found |= {name: getattr(outcome, name) for name in ("attempts", "retryable", "inputs", "arguments", "field_errors")}
    return {**found, "error": _error(outcome.error)}


def whole(outcome: Outcome[Any] | None) -> dict[str, Any]:
    """The same of a run's outcome, with its status and its results."""
    assert outcome is not None
    return {**shown(outcome), "status": outcome.status, "results": plain(dict(outcome.results))}


async def until_ended(run_id: str, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while (await runs.find(run_id)).status in ("pending", "running", "rolling_back", "paused"):
            await asyncio.sleep(0.005)


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two of these differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys([*one, *other])
        return [text for key in keys for text in differences(one.get(key), other.get(key), f"{where}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            text for i, pair in enumerate(zip(one, other, strict=True)) for text in differences(*pair, f"{where}[{i}]")
        ]
    return [] if one == other else [f"{where}: {one!r} != {other!r}"]


async def compared(
    place: Place,
    build: Any,
    options: dict[str, Any],
    *,
    live: bool = True,
    park_after: float = 0.2,
    delete: bool = True,
    resources: dict[str, Any] | None = None,
    cipher: Any = None,
    **inputs: Any,
) -> tuple[Any, list[str]]:
    """Run both; everything that has to be the same is. Gives the outcome and the ledger of the one that fanned out.

    ``live``: the inline one runs here, from its beginning to its end; else in a worker, too.
    """
    inline, fan = twins(build, options).values()
    async with hands(place, park_after=park_after, resources=resources or {}, cipher=cipher):
        ledger.clear()
        first = await (inline.run(**inputs) if live else (await inline.enqueue(**inputs)).result(timeout=8))
        expected, lines = whole(first), list(ledger)
        ledger.clear()
        handle = await fan.enqueue(**inputs)
        outcome = await handle.result(timeout=8)
        for found in (outcome, (await runs.find(handle.run_id)).outcome):
            wrong = differences(whole(found), expected)
            assert not wrong, "\n".join(wrong)
        compare_lines(list(ledger), lines, exact=options is ONE)
        if delete:
            await assert_nothing_is_left(place, handle.run_id)
    return outcome, list(ledger)


def compare_lines(fan: list[str], inline: list[str], *, exact: bool) -> None:
    """What bodies did; where elements run side by side, all that has to hold of their order."""
    if exact:
        assert fan == inline, f"{fan} != {inline}"
        return
    assert sorted(fan) == sorted(inline), f"{fan} != {inline}"
    for prefix in {line.partition(":")[2].partition("]")[0] for line in fan}:
        mine = [[x for x in lines if x.partition(":")[2].partition("]")[0] == prefix] for lines in (fan, inline)]
        assert mine[0] == mine[1], prefix
    outside = [[(i, x) for i, x in enumerate(lines) if "[" not in x] for lines in (fan, inline)]
    assert outside[0] == outside[1]  # what is around a map comes before, or after, all of its elements


async def assert_nothing_is_left(place: Place, run_id: str, *, crashed: bool = False) -> None:
    """No run of an element; and no key at all once the run is deleted.

    After a crash, indexes are left to sweeps, and what an element that was counted left behind goes by itself.
    """
    left = await place.do("KEYS", f"{place.prefix}:*{run_id}%2F*")
    if crashed:
        assert all([await place.do("PTTL", key) > 0 for key in left]), left
        for key in left:
            await place.do("DEL", key)
    else:
        assert not left, left
    await runs.delete(run_id)
    left = [key for key in await place.do("KEYS", f"{place.prefix}:*{run_id}*") if not crashed or b":index" not in key]
    assert not left, left
    if crashed:
        return
    for key in await place.do("KEYS", f"{place.prefix}:{{:index}}:*"):
        if await place.do("TYPE", key) == b"zset":
            assert [each for each in await place.do("ZRANGE", key, 0, -1) if run_id in each.decode()] == [], key
