"""How a worker process reaches the shop, which lives in the demo's own process: calls in lines of JSON on a socket.

A call names a system and an action and gets one answer, as a request over a network would. So a worker that is killed
while it waits leaves what it has asked for done or not done, and unheard of. The socket is also the life line of a
worker: it ends when the demo has, however that came.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec
from msgspec import Raw, Struct

from aioreactor.cli.demo import systems
from aioreactor.cli.demo.systems import Carrier, Gateway, Loyalty, Stock

LINK = "AIOREACTOR_DEMO_LINK"
"""The variable that has the number of the socket's file descriptor."""

SYSTEMS: Mapping[str, type] = {"stock": Stock, "gateway": Gateway, "carrier": Carrier, "loyalty": Loyalty}
ERRORS = {
    error.__name__: error
    for error in (systems.OutOfStock, systems.GatewayTimeout, systems.CardDeclined, systems.ShippingRefused)
}


class Call(Struct, tag="call"):
    """An action that a worker wants of a system."""

    id: int
    system: str
    action: str
    args: list[Raw]


class Did(Struct, tag="did", frozen=True):
    """What a worker is about to do for a run: ``run``, ``undo`` or ``compensate`` what is at ``path``."""

    run_id: str
    kind: str
    path: str


class Answer(Struct):
    """What came of a call; ``error`` names the class."""

    id: int
    value: Raw = Raw(b"null")
    error: str | None = None
    text: str = ""


async def perform(shop: Mapping[str, object], call: Call) -> Answer:
    """Do what a call asks for; errors of the systems are answers.

    Cancellation: as that of the action.
    """
    action = getattr(shop[call.system], call.action)
    hints, names = get_type_hints(action), inspect.signature(action).parameters
    args = [msgspec.json.decode(given, type=hints[name]) for given, name in zip(call.args, names, strict=True)]
    try:
        value = await action(*args)
    except tuple(ERRORS.values()) as error:
        return Answer(call.id, error=type(error).__name__, text=str(error))
    return Answer(call.id, Raw(msgspec.json.encode(value)))


def line(message: Struct) -> bytes:
    """A message as it goes over the socket."""
    return msgspec.json.encode(message) + b"\n"


class Link:
    """A worker's end. A thread reads, so that the link is there before any event loop is.

    Args:
        sock: Connected to the demo; blocking.
        on_end: Called in the thread when the demo is gone.
    """

    def __init__(self, sock: socket.socket, on_end: Callable[[], object] = lambda: os._exit(1)) -> None:
        self._sock = sock
        self._on_end = on_end
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Answer]]] = {}
        threading.Thread(target=self._read, name="demo-link", daemon=True).start()

    def tell(self, did: Did) -> None:
        """Send a note; there is no answer."""
        self._sock.sendall(line(did))

    async def call(self, system: str, action: str, args: tuple[Any, ...]) -> Any:
        """Have a system do something.

        Raises:
            OutOfStock, GatewayTimeout, CardDeclined, ShippingRefused: as the action.

        Cancellation: it may be done all the same.
        """
        loop = asyncio.get_running_loop()
        call = Call(next(self._ids), system, action, [Raw(msgspec.json.encode(arg)) for arg in args])
        answered: asyncio.Future[Answer] = loop.create_future()
        self._waiting[call.id] = loop, answered
        try:
            self._sock.sendall(line(call))
            answer = await answered
        finally:
            del self._waiting[call.id]
        if answer.error is not None:
            raise ERRORS[answer.error](answer.text)
        returns = get_type_hints(getattr(SYSTEMS[system], action))["return"]
        return msgspec.json.decode(answer.value, type=returns)

    def _read(self) -> None:
        with self._sock.makefile("rb") as lines:
            for each in lines:
                answer = msgspec.json.decode(each, type=Answer)
                waiting = self._waiting.get(answer.id)
                if waiting is not None:
                    waiting[0].call_soon_threadsafe(_settle, waiting[1], answer)
        self._on_end()


def _settle(answered: asyncio.Future[Answer], answer: Answer) -> None:
    if not answered.done():
        answered.set_result(answer)


class FarSystem:
    """A system of the shop as a worker's steps see it: the same actions, over the link."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._name = name

    def __getattr__(self, action: str) -> Any:
        """One of its actions."""
        if not hasattr(SYSTEMS[self._name], action):
            raise AttributeError(f"{self._name} has no action {action!r}")

        async def call(*args: Any) -> Any:
            return await self._link.call(self._name, action, args)

        return call
