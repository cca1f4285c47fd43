"""The example's processes, as its guide has them started, and a client for them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples"
SECRET = "a secret that both sides know"
_numbers = itertools.count()

Process: TypeAlias = asyncio.subprocess.Process


class Shop:
    """One shop with its own key space and books."""

    def __init__(self, url: str, folder: Path) -> None:
        self.prefix = f"e{os.getpid()}-{next(_numbers)}"
        self.environment = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES)]),
            "AIOREACTOR_REDIS_URL": url,
            "AIOREACTOR_KEY_PREFIX": self.prefix,
            "AIOREACTOR_QUEUE": f"{self.prefix}-queue",
            "CHECKOUT_SECRET": SECRET,
            "CHECKOUT_BOOKS": str(folder / "books.sqlite"),
        }
        # The name of a socket has to be short.
        self._sockets = tempfile.TemporaryDirectory(prefix="aior")
        self.socket = f"{self._sockets.name}/web"
        self.started: list[Process] = []
        self.logs: dict[Process, list[str]] = {}
        self.client: httpx.AsyncClient

    async def __aenter__(self) -> Shop:
        await self.open()
        self.client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=self.socket), base_url="http://shop", timeout=30
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        await self.client.aclose()
        logs = [await self.stop(process) for process in self.started]
        self._sockets.cleanup()
        if kind is None:
            for log in logs:
                assert "Traceback" not in log, log

    # ------------------------------------------------------------------ processes

    async def open(self, **environment: str) -> None:
        """Start the web application."""
        self.web = await self.start("uvicorn", "checkout.web:app", "--uds", self.socket, **environment)
        await self.says(self.web, "Uvicorn running")

    async def start(self, *command: str, **environment: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *command),
            cwd=EXAMPLES,
            env={**os.environ, **self.environment, **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self.started.append(process)
        self.logs[process] = []
        return process

    async def worker(self, packing: float = 0.0) -> Process:
        return await self.start("aioreactor", "worker", "checkout.shop", CHECKOUT_PACKING=str(packing))

    async def says(self, process: Process, text: str) -> str:
        """Wait until it has said this; gives the line."""
        assert process.stdout is not None
        async with asyncio.timeout(30):
            while line := (await process.stdout.readline()).decode():
                self.logs[process].append(line)
                if text in line:
                    return line
        raise AssertionError(f"{text!r} was not said: {self.logs[process]}")

    async def stop(self, process: Process) -> str:
        """Have it end; gives all that it has said."""
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            written, _ = await process.communicate()
        self.logs[process].append(written.decode())
        return "".join(self.logs[process])

    # ------------------------------------------------------------------ requests

    async def begin(self, order_id: int, **more: Any) -> httpx.Response:
        inputs = {"order_id": order_id, "email": "a@b.c", "item": "lamp", "quantity": 2, **more}
        return await self.client.post("/checkouts", json=inputs)

    async def status(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get(f"/checkouts/checkout-{number}")).json()
        return found

    async def books(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get("/books")).json()
        return found

    async def webhook(self, body: dict[str, Any] | bytes, signature: str | None = None) -> httpx.Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = signed(data) if signature is None else signature
        headers = {"Webhook-Signature": given} if given else {}
        return await self.client.post("/webhooks/approval", content=data, headers=headers)

    async def approve(self, number: int, message: str = "m-1", **approval: Any) -> httpx.Response:
        return await self.webhook(approval_of(number, message, **approval))

    @asynccontextmanager
    async def follow(self, number: int, last: str = "") -> AsyncIterator[AsyncIterator[dict[str, str]]]:
        """The events of a check-out, each as its fields."""
        headers = {"Last-Event-ID": last} if last else {}
        async with self.client.stream("GET", f"/checkouts/checkout-{number}/events", headers=headers) as response:
            assert response.status_code == 200, response
            assert response.headers["content-type"].startswith("text/event-stream")
            yield _events(response)

    async def until(self, number: int, told: str) -> None:
        """Follow a check-out until this is told."""
        async with asyncio.timeout(30), self.follow(number) as events:
            async for event in events:
                if said(event) == told:
                    return
        raise AssertionError(f"{told} was not told")


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    event: dict[str, str] = {}
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name:
            event[name] = value
        elif event:
            yield event
            event = {}


def said(event: dict[str, str]) -> str:
    """An event in short: ``run:reserve``, or ``end:completed``."""
    data = json.loads(event["data"])
    return f"end:{data['status']}" if event["event"] == "end" else f"{data['kind']}:{data['path']}"


def approval_of(number: int, message: str = "m-1", **approval: Any) -> dict[str, Any]:
    return {"id": message, "checkout": f"checkout-{number}", "approval": {"approved": True, "by": "ann", **approval}}


def signed(body: bytes, secret: str = SECRET, at: float | None = None) -> str:
    """A signature, made by another code than the example's."""
    moment = str(int(time.time() if at is None else at))
    digest = hmac.new(secret.encode(), f"{moment}.{body.decode()}".encode(), hashlib.sha256)
    return f"t={moment},v1={digest.hexdigest()}"
