"""URLs, and what is known about plain commands."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from aioreactor.store.commands import key_of
from aioreactor.store.endpoints import parse_endpoint
from aioreactor.store.errors import ReplyError
from aioreactor.store.replies import Verdict, backoff, redirect_of, verdict_on


def test_one_server() -> None:
    endpoint = parse_endpoint("redis://me:p%40ss@host:7000/3?client_name=x&max_connections=5", socket_timeout=1.0)
    assert (endpoint.kind, endpoint.connection_class) == ("server", Connection)
    expected = {
        "host": "host",
        "port": 7000,
        "db": 3,
        "username": "me",
        "password": "p@ss",
        "client_name": "x",
    }
    assert expected.items() <= dict(endpoint.options).items()
    assert "max_connections" not in endpoint.options
    assert "p@ss" not in repr(endpoint)
    assert parse_endpoint("rediss://host").connection_class is SSLConnection
    assert parse_endpoint("unix:///tmp/x?db=2").connection_class is UnixDomainSocketConnection


def test_sentinel() -> None:
    endpoint = parse_endpoint("redis+sentinel://me:pw@a:1,b,[::1]:3/main/2?sentinel_password=sp&socket_timeout=2")
    assert endpoint.seeds == (("a", 1), ("b", 26379), ("::1", 3))
    assert (endpoint.kind, endpoint.service, endpoint.options["db"]) == ("sentinel", "main", 2)
    assert endpoint.options["password"] == "pw"
    assert endpoint.sentinel_options == {
        "socket_keepalive": True,
        "socket_timeout": 2.0,
        "password": "sp",
        "socket_connect_timeout": 1.0,
    }
    assert "host" not in endpoint.options
    tls = parse_endpoint("rediss+sentinel://a/main?ssl_ca_certs=/x")
    assert tls.connection_class is SSLConnection
    assert {"ssl": True, "ssl_ca_certs": "/x"}.items() <= dict(tls.sentinel_options).items()


def test_cluster() -> None:
    endpoint = parse_endpoint("redis+cluster://u:p@a:1,b:2")
    assert (endpoint.kind, endpoint.seeds) == ("cluster", (("a", 1), ("b", 2)))
    assert endpoint.options["username"] == "u"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://x", "unknown store URL scheme 'http'"),
        ("redis+other://x", r"unknown store URL scheme 'redis\+other'"),
        ("unix+cluster:///x", "a cluster has no unix socket"),
        ("redis+sentinel://a", "names its service"),
        ("redis+cluster://a/1", "only database 0"),
        ("redis+cluster://,", "no host in ''"),
        ("redis://a?what=1", "not understood: .*'what'"),
        ("host:1", "unknown store URL scheme 'host'"),
    ],
)
def test_urls_that_are_refused(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_endpoint(url)


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("GET k", "k"),
        ("PING", None),
        ("EVALSHA abc 2 k l m", "k"),
        ("eval return 0", None),
        ("XREAD COUNT 1 STREAMS k 0", "k"),
        ("OBJECT ENCODING k", "k"),
        ("SCRIPT FLUSH", None),
        ("GET", None),
    ],
)
def test_keys_of_commands(command: str, key: str | None) -> None:
    assert key_of(command.split()) == key


def test_keys_of_other_types() -> None:
    assert key_of(["GET", b"k"]) == b"k"
    assert key_of(["GET", 5]) == "5"


@pytest.mark.parametrize(
    ("message", "code", "verdict"),
    [
        ("NOSCRIPT No matching script", "NOSCRIPT", Verdict.RELOAD),
        ("LOADING", "LOADING", Verdict.WAIT),
        ("READONLY You can't", "READONLY", Verdict.RECONNECT),
        ("MOVED 5 h:1", "MOVED", Verdict.MOVED),
        ("ERR LOADING in the text", "ERR", Verdict.RAISE),
        ("lower case", "ERR", Verdict.RAISE),
        ("", "ERR", Verdict.RAISE),
        ("OOM command not allowed", "OOM", Verdict.RAISE),
        ("ERR Error running script (call to f_1): @user_script:3: -OOM no", "OOM", Verdict.RAISE),
        (
            "ERR Error running script (call to f_1): @user_script:3: -READONLY no",
            "READONLY",
            Verdict.RECONNECT,
        ),
        ("ERR Error running script (call to f_1): @user_script:3: -BUSY own", "ERR", Verdict.RAISE),
    ],
)
def test_verdicts(message: str, code: str, verdict: Verdict) -> None:
    error = ReplyError(message)
    assert (error.code, verdict_on(error)) == (code, verdict)


def test_redirects() -> None:
    assert redirect_of(ReplyError("MOVED 3999 127.0.0.1:6381")) == (3999, "127.0.0.1", 6381)
    assert redirect_of(ReplyError("ASK 3999 :6381")) == (3999, "", 6381)
    assert redirect_of(ReplyError("ASK 1 2001:db8::1:6381")) == (1, "2001:db8::1", 6381)


def test_backoff_grows_to_its_cap() -> None:
    assert backoff(0) == backoff(1) == 0
    assert 0.01 <= backoff(2) <= 0.02
    assert 0.5 <= backoff(1000) <= 1.0
