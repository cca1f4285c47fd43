"""Lua scripts of a package: found, checked, hashed, and their replies read.

`library = ScriptLibrary("aioreactor.store")`, `script = library["lease_take"]`, and then
`word, values = await client.run(script, [key], [token, ttl_ms])`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from aioreactor.store import lua_source
from aioreactor.store.calls import Key, Value, pack
from aioreactor.store.errors import ScriptError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class Reply(NamedTuple):
    """What a script answered.

    Attributes:
        word: One of the words in its header.
        values: What follows the word: `bytes`, `int`, or lists of them.
    """

    word: str
    values: list[Any]


class Script:
    """A Lua script, ready to be called by its hash.

    Attributes:
        name: Its file's name without `.lua`.
        source: What is sent to the server, includes put in.
        sha: The hash by which the server knows it.
        header: What the file declares.
        load_command: A packed `SCRIPT LOAD`.
    """

    def __init__(self, name: str, source: str, header: lua_source.Header) -> None:
        self.name = name
        self.source = source
        self.header = header
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self.load_command = pack(("SCRIPT", "LOAD", source))
        self._words = {word.encode(): word for word in header.returns}
        self._sha_line = f"\r\n${len(self.sha)}\r\n{self.sha}\r\n".encode()

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys, in order."""
        return self.header.keys

    @property
    def args(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        return self.header.args

    def pack(self, keys: Sequence[Key], args: Sequence[Value]) -> bytes:
        """A packed `EVALSHA`.

        Raises:
            TypeError: The number of keys or arguments is not the declared one, or a value is of a type that
                cannot be sent.
        """
        header = self.header
        if len(keys) != len(header.keys) and (len(keys) < len(header.keys) or not header.more_keys):
            raise TypeError(self._miscounted("keys", header.keys, header.more_keys, len(keys)))
        if len(args) != len(header.args) and (len(args) < len(header.args) or not header.more_args):
            raise TypeError(self._miscounted("args", header.args, header.more_args, len(args)))
        return pack(("EVALSHA", self.sha, len(keys), *keys, *args))

    def as_eval(self, packed: bytes) -> bytes:
        """A packed `EVALSHA` turned into an `EVAL` of the same keys and arguments."""
        head, rest = packed.split(self._sha_line, 1)
        source = self.source.encode()
        head = head.replace(b"$7\r\nEVALSHA", b"$4\r\nEVAL")
        return b"".join((head, b"\r\n$%d\r\n" % len(source), source, b"\r\n", rest))

    def decode(self, reply: Any) -> Reply:
        """The word and the values of what the server sent.

        Raises:
            ScriptError: It begins with no declared word, or holds a nil.
        """
        word, values = (reply[0], reply[1:]) if isinstance(reply, list) and reply else (reply, [])
        known = self._words.get(word) if isinstance(word, bytes) else None
        if known is None or None in values:
            raise ScriptError(f"{self.name}: answered {reply!r:.200}, its header says {list(self.header.returns)}")
        return Reply(known, values)

    def _miscounted(self, what: str, names: tuple[str, ...], more: str, got: int) -> str:
        wanted = ", ".join((*names, f"{more}...")) if more else ", ".join(names)
        return f"{self.name} takes {what} ({wanted}), got {got}"

    def __repr__(self) -> str:
        return f"<Script {self.name} {self.sha[:8]}>"


class ScriptLibrary(Mapping[str, Script]):
    """The scripts in the `lua` folder of a package, each read and checked when it is first asked for.

    Args:
        package: Name of the package.
        shared: Libraries whose fragments may be included as well.
    """

    def __init__(self, package: str, *, shared: Sequence[ScriptLibrary] = ()) -> None:
        self.package = package
        self._shared = tuple(shared)
        self._scripts: dict[str, Script] = {}

    def __getitem__(self, name: str) -> Script:
        """The script `name`.

        Raises:
            KeyError: There is no such file.
            ScriptError: It does not do what its header says.
        """
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self._load(name)
        return script

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(f.name.removesuffix(".lua") for f in self._root().iterdir() if f.name.endswith(".lua")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def audit(self) -> list[str]:
        """Everything that is wrong with any of the files, conventions included; for tests."""
        problems: list[str] = []
        for name in self:
            problems += lua_source.check_style(name, self._text(name))
            try:
                self[name]
            except ScriptError as error:
                problems.append(str(error))
        return problems

    def _load(self, name: str) -> Script:
        own = self._text(name)
        header = lua_source.parse_header(name, own)
        source = lua_source.resolve(name, own, self._fragment)
        problems = lua_source.check(name, header, own, source)
        if problems:
            raise ScriptError("; ".join(problems))
        return Script(name, source, header)

    def _root(self) -> Traversable:
        return resources.files(self.package) / "lua"

    def _text(self, name: str) -> str:
        try:
            return (self._root() / f"{name}.lua").read_text("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise KeyError(f"{self.package} has no script {name!r}") from None

    def _fragment(self, name: str) -> str:
        for library in (self, *self._shared):
            try:
                return (library._root() / "fragments" / f"{name}.lua").read_text("utf-8")
            except (FileNotFoundError, NotADirectoryError):
                continue
        raise ScriptError(f"no fragment {name!r} in {self.package} or what it shares")


def script_from(name: str, text: str) -> Script:
    """A script from text instead of a file, under the same rules; without includes.

    Raises:
        ScriptError: It does not do what its header says.
    """

    def no_fragment(wanted: str) -> str:
        raise ScriptError(f"{name}: a script from text includes nothing, not {wanted!r}")

    header = lua_source.parse_header(name, text)
    problems = lua_source.check(name, header, text, lua_source.resolve(name, text, no_fragment))
    if problems:
        raise ScriptError("; ".join(problems))
    return Script(name, text, header)
