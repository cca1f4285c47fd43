"""Writes ``docs/reference/api.md`` from the public names of the package: ``python docs/build_reference.py``.

Every name in ``aioreactor.__all__`` has to be in one of the groups below; a new one makes this fail until it is.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aioreactor
from aioreactor.definition.nodes import MapNode, StepNode
from aioreactor.definition.reactor import Launch

TARGET = Path(__file__).parent / "reference" / "api.md"

GROUPS: dict[str, tuple[str, ...]] = {
    "Reactors": ("Reactor", "Plan"),
    "Steps": ("step", "Step", "async_step", "Context"),
    "Wiring": ("result", "from_input", "value", "Resource", "Redact"),
    "Composing": ("compose", "map_each", "MapResults", "Page", "async_reactor", "interrupt", "Default", "timer", "after", "before"),
    "Policies": ("Retry", "FanOut"),
    "Ending a step": ("succeed", "skip", "halt", "fail"),
    "Outcomes": (
        "Outcome", "Success", "Failure", "Halt", "Skipped", "Dispatched", "Paused", "OpenInterrupt", "RollbackFailure",
        "Location", "Trace", "TraceEntry",
    ),
    "Running": (
        "Runtime", "Settings", "configure", "current_runtime", "lifespan", "RunHandle", "runs", "RunPage", "sweep", "Value",
        "schedule", "Progress", "MapProgress", "StepReport",
    ),
    "Observing": ("Middleware",),
    "Coordination": ("Lock", "Semaphore", "RateLimit", "Period", "OrderedLock"),
}  # fmt: skip
_INTRO = """\
# API

Everything here is importable from `aioreactor`. This page is made from the docstrings by `docs/build_reference.py`; edit
those. Errors have a page with advice of their own: [Errors](errors.md).
"""
_SECTIONS = {"Args:": "Arguments", "Raises:": "Raises", "Returns:": "Returns", "Yields:": "Yields"}


def groups() -> dict[str, tuple[str, ...]]:
    """All groups; errors, which need no list, come last.

    Raises:
        LookupError: a public name is in no group, or a group has a name that is not public.
    """
    errors = [name for name in aioreactor.__all__ if _is_error(getattr(aioreactor, name))]
    found = {**GROUPS, "Errors": tuple(sorted(errors, key=_error_order))}
    listed = {name for names in found.values() for name in names}
    if listed != set(aioreactor.__all__):
        raise LookupError(f"not in step with aioreactor.__all__: {sorted(listed ^ set(aioreactor.__all__))}")
    return found


def _is_error(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, aioreactor.AioreactorError)


def _error_order(name: str) -> tuple[bool, str]:
    return name != "AioreactorError", name


def _prose(text: str) -> str:
    """A docstring as Markdown: code in single backticks, sections as lists."""
    lines = []
    inside = False
    for line in inspect.cleandoc(text).splitlines():
        heading = _SECTIONS.get(line.strip())
        if heading is not None:
            inside = True
            lines += [f"**{heading}**", ""]
        elif inside and re.match(r" {4}\S", line):
            lines.append("- " + re.sub(r"^([^:]+): ", r"`\1`: ", line.strip()))
        elif inside and line.startswith("     "):
            lines.append("  " + line.strip())
        elif line.startswith("Cancellation:"):
            inside = False
            lines.append(line.replace("Cancellation:", "**Cancellation:**", 1))
        else:
            inside = inside and not line.strip()
            lines.append(line)
    return re.sub(r"``(.+?)``", r"`\1`", "\n".join(lines))


def _signature(item: Any) -> str:
    """The signature, on one line if it fits; private parameters are left out, objects are not spelled out."""
    try:
        found = inspect.signature(item)
    except (TypeError, ValueError):
        return "(…)"
    parameters = [_shown(each) for each in found.parameters.values() if not each.name.startswith("_")]
    returned = found.return_annotation
    found = found.replace(parameters=parameters, return_annotation=_plain(returned))
    if returned == "None" and isinstance(item, type):
        found = found.replace(return_annotation=found.empty)
    one_line = str(found)
    if len(one_line) <= 90:
        return one_line
    result = f" -> {found.return_annotation!r}" if found.return_annotation is not found.empty else ""
    return "(\n" + "".join(f"    {part},\n" for part in _parts(parameters)) + f"){result}"


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if isinstance(default, tuple) and default and all(isinstance(each, type) for each in default):
        default = _Shown(f"({', '.join(each.__name__ for each in default)},)")
    elif default is not parameter.empty and not isinstance(default, (str, int, float, tuple, type(None))):
        default = _Shown("…")
    return parameter.replace(default=default, annotation=_plain(parameter.annotation))


def _plain(annotation: Any) -> Any:
    text = getattr(annotation, "__forward_arg__", annotation)
    return _Shown(text) if isinstance(text, str) else annotation


def _parts(parameters: list[inspect.Parameter]) -> list[str]:
    """One text per parameter, with the marks ``/`` and ``*`` between them."""
    parts = []
    kinds = [parameter.kind for parameter in parameters]
    for index, (parameter, kind) in enumerate(zip(parameters, kinds, strict=True)):
        before = kinds[:index]
        if before and before[-1] is parameter.POSITIONAL_ONLY and kind is not parameter.POSITIONAL_ONLY:
            parts.append("/")
        if kind is parameter.KEYWORD_ONLY and not {parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL} & set(before):
            parts.append("*")
        parts.append(str(parameter))
    return parts


class _Shown:
    """A default or an annotation that is shown as a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _code(text: str) -> list[str]:
    return ["```text", text, "```", ""]


def _callable(name: str, item: Any) -> Iterator[str]:
    prefix = "async def " if inspect.iscoroutinefunction(inspect.unwrap(item)) else "def "
    yield from _code(f"{prefix}{name}{_signature(item)}")
    yield from [_prose(item.__doc__ or ""), ""]


def _own_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public members that the package itself defines, bases included, in the order of their definition."""
    seen = set()
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] != "aioreactor":
            continue
        for name, item in vars(owner).items():
            if not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, item


def _member(name: str, item: Any) -> str | None:
    if isinstance(item, property):
        return f"- `{name}`: {_first(item.fget)}"
    call = item.__func__ if isinstance(item, (classmethod, staticmethod)) else item
    if not inspect.isfunction(call) or not call.__doc__:
        return None
    return f"- `{name}(…)`: {_first(call)}"


def _first(item: Any) -> str:
    return _prose((item.__doc__ or "").strip().partition("\n\n")[0]).replace("\n", " ")


def _class(name: str, cls: Any) -> Iterator[str]:
    if _is_error(cls):
        bases = ", ".join(base.__name__ for base in cls.__bases__)
        yield from [f"*{bases}*", "", _prose(cls.__doc__ or ""), ""]
        return
    if name not in {"Reactor", "Plan", "Context", "RunHandle", "Redact", "Resource", "Trace", "Middleware", "Runs"}:
        yield from _code(f"{name}{_signature(cls)}")
    yield from [_prose(cls.__doc__ or ""), ""]
    members = [text for member, item in _own_members(cls) if (text := _member(member, item)) is not None]
    if members:
        yield from ["**Members**", "", *members, ""]


def _reactor_calls() -> Iterator[str]:
    for name in ("run", "run_or_raise", "spawn", "enqueue", "enqueue_many"):
        yield f"#### `Reactor.{name}`"
        yield ""
        yield from _callable(name, getattr(Launch, name))
    options = type(aioreactor.Reactor.with_options)
    yield "#### `Reactor.with_options`"
    yield ""
    yield from _callable("with_options", options.__call__)
    yield from ["`Reactor.plan` is the compiled `Plan`. `Reactor.runs` is `runs` for the runs of one reactor.", ""]


def _decorated(what: str, cls: type, names: tuple[str, ...]) -> Iterator[str]:
    yield f"Of a {what} `s`:"
    yield ""
    for name in names:
        yield f"- `@s.{name}`: {_first(getattr(cls, name))}"
    yield ""


def _alias(name: str) -> Iterator[str]:
    members = [getattr(arg, "__origin__", arg).__name__ for arg in typing.get_args(getattr(aioreactor, name))]
    yield from _code(f"{name} = {' | '.join(members)}")
    yield from ["What `run` returns.", ""]


def _entry(name: str) -> Iterator[str]:
    item = getattr(aioreactor, name)
    yield f"### `{name}`"
    yield ""
    if isinstance(item, type):
        yield from _class(name, item)
    elif name == "runs":
        yield from _class("Runs", type(item))
    elif callable(item) and inspect.isfunction(inspect.unwrap(item)):
        yield from _callable(name, item)
    else:
        yield from _alias(name)
    if name == "Reactor":
        yield from _reactor_calls()
    elif name == "step":
        yield from _decorated("step", StepNode, ("undo", "compensate"))
    elif name == "map_each":
        yield from _decorated("map", MapNode, ("undo", "compensate", "undo_all", "collect"))


def render() -> str:
    """The whole page."""
    lines = [_INTRO]
    for title, names in groups().items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += _entry(name)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET}")
