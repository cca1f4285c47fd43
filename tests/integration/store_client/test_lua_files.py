"""The loader of Lua files: headers, includes, and the checks."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aioreactor.store.client import StoreClient
from aioreactor.store.errors import ScriptError
from aioreactor.store.scripts import ScriptLibrary, script_from

Package = Callable[..., ScriptLibrary]

GOOD = """--[[
Take the lease of a run,
or renew it.

keys: run, steps
args: token, ttl_ms, fields...
returns: OK version now_ms
  | LOST reason
events: lease_taken (when it was
  free)
]]
--- @include "clock"
local run, steps = KEYS[1], KEYS[2]
local token, ttl_ms = ARGV[1], tonumber(ARGV[2])
for i = 3, #ARGV do redis.call('HSET', steps, i, ARGV[i]) end
if redis.call('EXISTS', run) == 1 then return {'LOST', 'taken'} end
return {'OK', 1, now_ms()}
"""
CLOCK = "local function now_ms()\n  local t = redis.call('TIME')\n  return t[1] * 1000\nend\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Package:
    name = "pkg_" + hashlib.md5(request.node.name.encode()).hexdigest()[:8]
    folder = tmp_path / name / "lua" / "fragments"
    folder.mkdir(parents=True)
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**files: str) -> ScriptLibrary:
        for stem, text in files.items():
            path = folder / f"{stem[9:]}.lua" if stem.startswith("fragment_") else folder.parent / f"{stem}.lua"
            path.write_text(text)
        sys.modules.pop(name, None)
        return ScriptLibrary(name)

    return write


def test_a_script_is_read_checked_and_hashed(package: Package) -> None:
    library = package(lease_take=GOOD, fragment_clock=CLOCK)
    script = library["lease_take"]
    assert (script.name, script.keys, script.args) == ("lease_take", ("run", "steps"), ("token", "ttl_ms"))
    assert script.header.summary == "Take the lease of a run, or renew it."
    assert script.header.more_args == "fields"
    assert script.header.returns == {"OK": ("version", "now_ms"), "LOST": ("reason",)}
    assert script.header.notes == {"events": "lease_taken (when it was free)"}
    assert "--- @include" not in script.source
    assert CLOCK.rstrip() in script.source
    assert script.sha == hashlib.sha1(script.source.encode()).hexdigest()
    assert library["lease_take"] is script
    assert list(library) == ["lease_take"]
    assert library.audit() == []


async def test_it_runs(package: Package, client: StoreClient, key: str) -> None:
    script = package(lease_take=GOOD, fragment_clock=CLOCK)["lease_take"]
    word, values = await client.run(script, [f"{key}r", f"{key}s"], ["t", 1000, "a", "b"])
    assert (word, values[0]) == ("OK", 1)
    assert await client.execute("HLEN", f"{key}s") == 2


def test_files_are_found_by_name(package: Package) -> None:
    library = package(a_b=GOOD, fragment_clock=CLOCK)
    assert "a_b" in library
    assert "c_d" not in library
    assert len(library) == 1
    with pytest.raises(KeyError, match="has no script 'c_d'"):
        library["c_d"]


def test_fragments_are_put_in_once_and_may_include_others(package: Package) -> None:
    library = package(
        a_b=GOOD.replace('"clock"', '"outer"\n--- @include "clock"'),
        fragment_clock=CLOCK,
        fragment_outer='--- @include "clock"\nlocal function later() return now_ms() end\n',
    )
    assert library["a_b"].source.count("local function now_ms") == 1


def test_fragments_of_another_package_can_be_shared(package: Package) -> None:
    library = package(a_b=GOOD)
    other = package(fragment_clock=CLOCK)
    assert ScriptLibrary(library.package, shared=[other])["a_b"]


def test_fragments_in_a_circle(package: Package) -> None:
    library = package(a_b=GOOD, fragment_clock='--- @include "b"', fragment_b='--- @include "clock"')
    with pytest.raises(ScriptError, match="a_b > clock > b > clock"):
        library["a_b"]


def test_a_fragment_that_is_missing(package: Package) -> None:
    with pytest.raises(ScriptError, match="no fragment 'clock'"):
        package(a_b=GOOD)["a_b"]


HEAD = "--[[\nkeys: run\nargs: token\nreturns: OK\n]]\n"
BIND = "local run = KEYS[1]\nlocal token = ARGV[1]\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("local x = 1\n", "must begin with a --"),
        ("--[[\nkeys: run\n]]\n", "lacks args, returns"),
        ("--[[\nkeys: run, run\nargs:\nreturns: OK\n]]\n", "declared twice"),
        ("--[[\nkeys: run\nargs: run\nreturns: OK\n]]\n", "declared twice"),
        ("--[[\nkeys: Run\nargs:\nreturns: OK\n]]\n", "'Run' in the header is not a lower-case name"),
        ("--[[\nkeys: run\nargs:\nreturns: ok\n]]\n", "WORD value"),
        ("--[[\nkeys: run\nargs:\nreturns: OK | OK\n]]\n", "each word once"),
        (
            HEAD + "local run = KEYS[1]\nreturn {'OK', ARGV[1]}\n",
            r"token is declared but ARGV\[1\] is not bound",
        ),
        (
            HEAD + "local run = KEYS[1]\nlocal tok = ARGV[1]\nreturn 'OK'\n",
            r"ARGV\[1\] is declared as token but bound to tok",
        ),
        (HEAD + BIND + "local more = ARGV[2]\nreturn 'OK'\n", r"ARGV\[2\] is used but not declared"),
        (HEAD + BIND + "return {'OK', #ARGV}\n", "whole of ARGV is used"),
        (
            HEAD + BIND + "return {'LOST'}\n",
            "answers LOST, which returns: does not list; .*lists OK, which does not",
        ),
        (
            HEAD.replace("token", "token, rest...") + BIND + "return 'OK'\n",
            r"rest\.\.\. is declared but the rest",
        ),
        (
            HEAD.replace("run\n", "run, steps\n")
            + "local steps, run = KEYS[1], KEYS[2]\nlocal token = ARGV[1]\nreturn 'OK'\n",
            "declared as run but bound to steps",
        ),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ScriptError, match=problem):
        script_from("a_b", text)


def test_comments_are_not_code() -> None:
    assert script_from("a_b", HEAD + BIND + "-- KEYS[7] return {'NO'}\n--[[ #ARGV ]]\nreturn 'OK'\n")


def test_expressions_around_arguments() -> None:
    text = (
        HEAD.replace("token", "token, ttl_ms, body")
        + "local run = KEYS[1]\nlocal token, ttl_ms,\n  body = ARGV[1], math.max(1, tonumber(ARGV[2])),\n"
        + "  cjson.decode(ARGV[3])\nreturn 'OK'\n"
    )
    assert script_from("a_b", text).args == ("token", "ttl_ms", "body")


def test_an_audit_names_everything(package: Package) -> None:
    library = package(bad=GOOD, long_file=GOOD + "-- line\n" * 80, a_b="nothing", fragment_clock=CLOCK)
    problems = library.audit()
    assert [p.split(":")[0] for p in problems] == ["a_b.lua", "bad.lua", "long_file.lua"]


def test_text_includes_nothing() -> None:
    with pytest.raises(ScriptError, match="includes nothing"):
        script_from("a_b", HEAD + '--- @include "x"\n' + BIND + "return 'OK'\n")


def test_a_packed_call_turned_into_an_eval() -> None:
    script = script_from("a_b", HEAD + BIND + "return 'OK'\n")
    packed = script.pack(["k"], [f"\r\n$40\r\n{script.sha}\r\nEVALSHA"])
    source = script.source.encode()
    assert script.as_eval(packed) == packed.replace(b"$7\r\nEVALSHA", b"$4\r\nEVAL", 1).replace(
        b"$40\r\n" + script.sha.encode(), b"$%d\r\n%s" % (len(source), source), 1
    )


def test_the_packages_own_scripts_keep_the_rules() -> None:
    assert ScriptLibrary("aioreactor.store").audit() == []
