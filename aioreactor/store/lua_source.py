"""Reads Lua files: header, includes, and whether a file does what its header says. Pure.

A file is one operation, named `subject_verb.lua`:

    --[[
    Take the lease of a run.

    keys: run, steps
    args: token, ttl_ms, fields...
    returns: OK version | LOST reason
    ]]
    --- @include "clock"
    local run, steps = KEYS[1], KEYS[2]
    local token, ttl_ms = ARGV[1], tonumber(ARGV[2])

`keys` and `args` name what the caller passes, in order; a last name that ends in `...` takes the rest.
Every name is bound, in this order, by `local` statements at the left margin. `returns` lists the
alternatives as a word and the names of its values. Entries may go on in indented lines; other entries
(`events:`, for example) are kept as text. `--- @include "name"` is replaced by `fragments/name.lua`,
once, at its first mention.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from aioreactor.store.errors import ScriptError

MAX_LINES = 80

_HEADER = re.compile(r"\A--\[\[(.*?)\]\]", re.DOTALL)
_ENTRY = re.compile(r"^([a-z]+):[ \t]*(.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_WORD = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_INCLUDE = re.compile(r'^[ \t]*--- @include "([a-z0-9_/]+)"[ \t]*$', re.MULTILINE)
_COMMENT = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
_LOCAL = re.compile(r"^local ((?:[a-z0-9_, \t]|\n[ \t])+?)=([^\n=].*(?:\n[ \t]+.*)*)", re.MULTILINE)
_INDEX = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
_WHOLE = re.compile(r"\b(KEYS|ARGV)\b(?!\[\d+\])")
_REPLIED = re.compile(r"\breturn[ \t(]*\{?[ \t\n]*(['\"])([A-Z][A-Z0-9_]*)\1")


@dataclass(frozen=True, slots=True)
class Header:
    """What a file declares.

    Attributes:
        summary: Text before the first entry.
        keys: Names of the keys; without the one that takes the rest.
        args: Names of the arguments; likewise.
        more_keys: Name of the rest of the keys, or empty.
        more_args: Name of the rest of the arguments, or empty.
        returns: Word of each alternative and the names of its values.
        notes: Entries of other names, as text.
    """

    summary: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    more_keys: str
    more_args: str
    returns: dict[str, tuple[str, ...]]
    notes: dict[str, str]


def parse_header(name: str, text: str) -> Header:
    """The header of the file `name`.

    Raises:
        ScriptError: It is missing or malformed.
    """
    found = _HEADER.match(text)
    if not found:
        raise ScriptError(f"{name}.lua: must begin with a --[[ header ]]")
    inside = textwrap.dedent(found[1])
    entries = {entry[1]: " ".join(entry[2].split()) for entry in _ENTRY.finditer(inside)}
    missing = {"keys", "args", "returns"} - entries.keys()
    if missing:
        raise ScriptError(f"{name}.lua: the header lacks {', '.join(sorted(missing))}: (may be empty)")
    keys, more_keys = _names(name, entries.pop("keys"))
    args, more_args = _names(name, entries.pop("args"))
    both = [*keys, *args, *filter(None, (more_keys, more_args))]
    if len(set(both)) != len(both):
        raise ScriptError(f"{name}.lua: a name is declared twice")
    first = _ENTRY.search(inside)
    summary = " ".join(inside[: first.start() if first else 0].split())
    return Header(summary, keys, args, more_keys, more_args, _returns(name, entries.pop("returns")), entries)


def resolve(name: str, text: str, fragment: Callable[[str], str]) -> str:
    """`text` with its includes put in, each once; `fragment` gives the text of one.

    Raises:
        ScriptError: Fragments include each other in a circle, or one is missing.
    """
    return _resolve(text, fragment, done=set(), path=(name,))


def _resolve(text: str, fragment: Callable[[str], str], *, done: set[str], path: tuple[str, ...]) -> str:
    def put_in(match: re.Match[str]) -> str:
        wanted = match[1]
        if wanted in path:
            raise ScriptError(f"includes go in a circle: {' > '.join((*path, wanted))}")
        if wanted in done:
            return ""
        done.add(wanted)
        return _resolve(fragment(wanted), fragment, done=done, path=(*path, wanted)).rstrip("\n")

    return _INCLUDE.sub(put_in, text)


def check(name: str, header: Header, own: str, resolved: str) -> list[str]:
    """What is wrong with a file: `own` is its text, `resolved` the text with includes."""
    code, whole = _COMMENT.sub("", own), _COMMENT.sub("", resolved)
    problems = [
        *_check_bindings("KEYS", header.keys, header.more_keys, code, whole),
        *_check_bindings("ARGV", header.args, header.more_args, code, whole),
        *_check_words(header, whole),
    ]
    return [f"{name}.lua: {problem}" for problem in problems]


def check_style(name: str, own: str) -> list[str]:
    """What does not keep a script from working, but breaks a convention; for the tests of a package."""
    problems = []
    lines = own.count("\n")
    if lines > MAX_LINES:
        problems.append(f"{name}.lua: {lines} lines; at most {MAX_LINES}, move a part into a fragment")
    if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", name):
        problems.append(f"{name}.lua: is to be named subject_verb.lua")
    return problems


def _names(name: str, text: str) -> tuple[tuple[str, ...], str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    more = names.pop().removesuffix("...") if names and names[-1].endswith("...") else ""
    for each in (*names, *([more] if more else ())):
        if not _NAME.match(each):
            raise ScriptError(f"{name}.lua: {each!r} in the header is not a lower-case name")
    return tuple(names), more


def _returns(name: str, text: str) -> dict[str, tuple[str, ...]]:
    alternatives: dict[str, tuple[str, ...]] = {}
    for alternative in text.split("|"):
        word, *values = alternative.replace(",", " ").split() or [""]
        if not _WORD.match(word) or word in alternatives:
            raise ScriptError(f"{name}.lua: returns: wants WORD value ... | WORD ..., each word once")
        alternatives[word] = tuple(values)
    return alternatives


def _check_bindings(table: str, names: tuple[str, ...], more: str, code: str, resolved: str) -> list[str]:
    problems = []
    bound: dict[int, str] = {}
    for left, right in _locals(code):
        for index in _INDEX.finditer(right):
            if index[1] == table:
                bound.setdefault(int(index[2]), left)
    for place, wanted in enumerate(names, 1):
        if place not in bound:
            problems.append(f"{wanted} is declared but {table}[{place}] is not bound to a local")
        elif bound[place] != wanted:
            problems.append(f"{table}[{place}] is declared as {wanted} but bound to {bound[place]}")
    used = {int(index[2]) for index in _INDEX.finditer(resolved) if index[1] == table}
    if not more:
        problems += [f"{table}[{i}] is used but not declared" for i in sorted(used) if i > len(names)]
    whole = any(match[1] == table for match in _WHOLE.finditer(resolved))
    if more and not whole and not any(i > len(names) for i in used):
        problems.append(f"{more}... is declared but the rest of {table} is not used")
    if whole and not more:
        problems.append(f"the whole of {table} is used but the header declares no name...")
    return problems


def _locals(code: str) -> list[tuple[str, str]]:
    """Each name that is bound at the left margin, and the expression it is bound to."""
    pairs = []
    for statement in _LOCAL.finditer(code):
        names = [name.strip() for name in statement[1].split(",")]
        pairs += list(zip(names, _split(statement[2]), strict=False))
    return pairs


def _split(expressions: str) -> list[str]:
    parts, depth = [""], 0
    for char in expressions:
        depth += (char in "({[") - (char in ")}]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _check_words(header: Header, code: str) -> list[str]:
    replied = {match[2] for match in _REPLIED.finditer(code)}
    problems = [f"answers {word}, which returns: does not list" for word in sorted(replied - header.returns.keys())]
    unused = [w for w in header.returns if not re.search(rf"""(['"]){w}\1""", code)]
    return problems + [f"returns: lists {word}, which does not occur" for word in unused]
