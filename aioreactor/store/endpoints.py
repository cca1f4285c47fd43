"""Where the server is: what a URL means, and how a connection to it is opened.

| URL | what |
| --- | --- |
| `redis://[user:password@]host[:port][/db]` | one server |
| `rediss://...` | the same over TLS |
| `unix:///path/to/socket?db=0` | one server on this machine |
| `redis+sentinel://[user:password@]host:port,host:port/service[/db]` | the primary that Sentinels name |
| `redis+cluster://[user:password@]host:port,host:port` | a Redis Cluster |

`rediss+sentinel` and `rediss+cluster` use TLS. Query arguments are those of redis-py's connections
(`ssl_ca_certs`, `client_name`, `protocol`, ...); `sentinel_username` and `sentinel_password` are for the
Sentinels themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, parse_url
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.utils import str_if_bytes

Address: TypeAlias = tuple[str, int]

TROUBLE = (RedisError, OSError)
"""What opening or using a connection may raise when the server is not well."""

SENTINEL_TIMEOUT = 1.0
"""Seconds for reaching one Sentinel before another one is asked."""

# redis-py accepts these in URLs for its pools and clients; a bare connection does not know them, and
# replies are never decoded here.
_NOT_FOR_CONNECTIONS = frozenset({"max_connections", "timeout", "decode_responses", "health_check_interval"})
_REFUSALS = (AuthenticationError, AuthorizationError, NoPermissionError)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, the primary behind some Sentinels, or a cluster.

    Attributes:
        kind: `"server"`, `"sentinel"` or `"cluster"`.
        seeds: Addresses of the Sentinels, or of the cluster's first nodes.
        service: Name of the primary with the Sentinels.
        connection_class: Of redis-py.
        options: What connections are made with; holds the password, so never shown.
        sentinel_options: The same for connections to Sentinels.
    """

    kind: str
    seeds: tuple[Address, ...] = ()
    service: str = ""
    connection_class: type[AbstractConnection] = Connection
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    async def connect(self, address: Address | None = None) -> AbstractConnection:
        """A connection after its handshake: to `address`, else to the server or the current primary.

        Raises:
            RedisError: The server does not answer, is not ready, or refuses the credentials.
            OSError: The address cannot be reached.

        Cancellation: leaves no open connection.
        """
        if self.kind == "sentinel":
            address = await self._primary()
        connection = self.connection(address)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            if self.kind == "sentinel":
                await _check_primary(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    def connection(self, address: Address | None = None) -> AbstractConnection:
        """A connection that is not open yet."""
        options = dict(self.options)
        if address is not None:
            options["host"], options["port"] = address
        return self.connection_class(**options)

    async def _primary(self) -> Address:
        # One that is unreachable must not be the first to be asked each time.
        seeds = random.sample(self.seeds, len(self.seeds))
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            seeds, sentinel_kwargs=dict(self.sentinel_options)
        )
        try:
            host, port = await sentinel.discover_master(self.service)
        finally:
            await asyncio.gather(*(each.aclose() for each in sentinel.sentinels), return_exceptions=True)
        return str_if_bytes(host), int(port)


def parse_endpoint(url: str, **options: Any) -> Endpoint:
    """What `url` names; `options` are defaults for redis-py's connections.

    Raises:
        ValueError: The URL is not of a form in the table above.
    """
    scheme, _, topology = urlsplit(url).scheme.partition("+")
    if scheme not in {"redis", "rediss", "unix"} or topology not in {"", "sentinel", "cluster"}:
        raise ValueError(
            f"unknown store URL scheme {urlsplit(url).scheme!r}: use redis, rediss or unix, "
            "redis+sentinel, redis+cluster, or the latter two with rediss"
        )
    if topology and scheme == "unix":
        raise ValueError(f"a {topology} has no unix socket")
    endpoint = _parse_many(url, scheme, topology, options) if topology else _parse_server(url, options)
    try:
        endpoint.connection()
    except (TypeError, RedisError) as error:
        raise ValueError(f"an option of the store's connections is not understood: {error}") from error
    return endpoint


def refuses(error: BaseException | None) -> bool:
    """Whether the server answered a handshake in a way that trying again will not change."""
    while error is not None:
        if isinstance(error, _REFUSALS):
            return True
        if isinstance(error, ResponseError):
            return not str(error).startswith(("LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY"))
        error = error.__cause__ or error.__context__
    return False


def _parse_server(url: str, options: dict[str, Any]) -> Endpoint:
    parsed: dict[str, Any] = dict(parse_url(url))
    chosen: type[AbstractConnection] = parsed.pop("connection_class", Connection)
    if issubclass(chosen, Connection):
        options = {"socket_keepalive": True, **options}
    return Endpoint("server", connection_class=chosen, options=_clean(options | parsed))


def _parse_many(url: str, scheme: str, topology: str, options: dict[str, Any]) -> Endpoint:
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    seeds = tuple(_address(host, 26379 if topology == "sentinel" else 6379) for host in hosts.split(","))
    service, _, db = parts.path.strip("/").partition("/")
    if topology == "sentinel" and not service:
        raise ValueError("a Sentinel URL names its service: redis+sentinel://host:port/service")
    if topology == "cluster" and service not in {"", "0"}:
        raise ValueError("a cluster has only database 0")
    netloc = f"{credentials}@placeholder" if credentials else "placeholder"
    path = db if topology == "sentinel" else ""
    parsed = dict(parse_url(urlunsplit((scheme, netloc, f"/{path}", parts.query, ""))))
    parsed.pop("host", None)
    parsed.pop("connection_class", None)
    sentinel_auth = {k: parsed.pop(f"sentinel_{k}", None) for k in ("username", "password")}
    merged = _clean({"socket_keepalive": True, **options, **parsed})
    return Endpoint(
        topology,
        seeds,
        service,
        SSLConnection if scheme == "rediss" else Connection,
        merged,
        _sentinel_options(merged, sentinel_auth, tls=scheme == "rediss"),
    )


def _sentinel_options(options: dict[str, Any], auth: dict[str, Any], *, tls: bool) -> dict[str, Any]:
    shared = {k: v for k, v in options.items() if k.startswith(("socket_", "ssl_"))}
    patience = shared.get("socket_connect_timeout") or shared.get("socket_timeout") or SENTINEL_TIMEOUT
    shared["socket_connect_timeout"] = min(patience, SENTINEL_TIMEOUT)
    return shared | {k: v for k, v in auth.items() if v is not None} | ({"ssl": True} if tls else {})


def _clean(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k not in _NOT_FOR_CONNECTIONS}


def _address(text: str, default_port: int) -> Address:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"no host in {text!r}")
    return parts.hostname, parts.port or default_port


async def _check_primary(connection: AbstractConnection) -> None:
    """A Sentinel may still name a primary that was demoted a moment ago: ask the server itself."""
    await connection.send_command("ROLE")
    try:
        role: Any = await connection.read_response()
    except NoPermissionError:
        return
    if str_if_bytes(role[0]) != "master":
        raise ConnectionError("the Sentinels named a server that is not a primary")
