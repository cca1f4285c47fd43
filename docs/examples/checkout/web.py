"""The web application: ``uvicorn checkout.web:app``.

| request | |
| --- | --- |
| ``POST /checkouts`` | begins a check-out, once per order |
| ``GET /checkouts/{id}`` | how it stands |
| ``GET /checkouts/{id}/events`` | follows it, as server-sent events |
| ``POST /checkouts/{id}/cancel`` | calls it off, and takes back what it has done |
| ``POST /webhooks/approval`` | answers it, signed |
| ``GET /books`` | what is left, and the money |

Who may do what is left out: put your own middleware in front.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import aioreactor
from aioreactor import (
    AlreadyResumed,
    Failure,
    IdempotencyConflict,
    InputValidationError,
    NotResumable,
    RunNotFound,
    current_runtime,
)
from aioreactor.store.errors import StoreError
from checkout.shop import Approval, Checkout
from checkout.signature import BadSignature, verify

SECRET = os.environ["CHECKOUT_SECRET"].encode()
LONGEST_BODY, LONGEST_ID = 16 * 1024, 100
_log = logging.getLogger("checkout")


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """The body of the webhook. ``id`` is of the message: it stays the same when the message is sent again."""

    id: Annotated[str, Meta(min_length=1, max_length=100)]
    checkout: Annotated[str, Meta(max_length=LONGEST_ID)]
    approval: Approval


# ---------------------------------------------------------------------- requests


async def begin(request: Request) -> Response:
    """One check-out per order: who asks again gets the one that there is."""
    inputs = await _json(request)
    run_id = f"checkout-{inputs.get('order_id')}"
    handle = await Checkout.with_options(run_id=run_id).enqueue(**inputs)
    if await handle.status() == "failed":
        outcome = await handle.result()
        if isinstance(outcome, Failure) and outcome.field_errors:
            return JSONResponse({"errors": outcome.field_errors}, 422)
    return JSONResponse(_links(run_id), 202, {"Location": f"/checkouts/{run_id}"})


async def show(request: Request) -> Response:
    found = await Checkout.runs.find(_id(request))
    answer = {"id": found.run_id, "status": found.status, "waits_for": found.waits_for}
    match found.outcome:
        case Failure(error=error, step=where):
            answer |= {"step": where, "error": str(error)}
        case aioreactor.Success(value):
            answer |= {"result": value}
    return JSONResponse(answer)


async def follow(request: Request) -> Response:
    """Each event's id is its place in the trace; a client that has lost its connection says which one it saw last."""
    run_id, seen = _id(request), request.headers.get("Last-Event-ID", "")
    await Checkout.runs.find(run_id)
    return EventSourceResponse(_told(run_id, int(seen) if seen.isdecimal() and len(seen) < 10 else -1))


async def _told(run_id: str, seen: int) -> AsyncIterator[dict[str, str]]:
    # A client that goes away ends this loop, and nothing else: the check-out goes on.
    async for entry in Checkout.runs.events(run_id, after=seen):
        told = {"kind": entry.kind, "path": entry.path, "attempt": entry.attempt, "at": entry.at}
        yield {"id": str(entry.seq), "event": "trace", "data": json.dumps(told)}
    found = await Checkout.runs.find(run_id)
    yield {"event": "end", "data": json.dumps({"status": found.status})}


async def cancel(request: Request) -> Response:
    """Wherever it is executed, or if it is not at the moment; returns when it has been rolled back."""
    outcome = await Checkout.runs.cancel(_id(request), "the customer has changed their mind")
    taken_back = outcome.trace.only("compensate", "undo")
    return JSONResponse({"status": outcome.status, "taken_back": [str(entry) for entry in taken_back]})


async def approve(request: Request) -> Response:
    """Signature first: nothing of an unsigned body is looked at."""
    body = await _body(request)
    verify(SECRET, body, request.headers.get("Webhook-Signature", ""), time.time())
    answer = msgspec.json.decode(body, type=Answer)
    # The message's id is the key: the same message again, by mistake or by a stranger who has recorded it, is answered
    # like the first and changes nothing. Another message for the same check-out is refused.
    outcome = await Checkout.runs.resume(answer.checkout, Checkout.approval, answer.approval, key=answer.id)
    return JSONResponse({"status": outcome.status}, 202)


async def books(request: Request) -> Response:
    found = current_runtime().settings.resources["books"]
    return JSONResponse(await run_in_threadpool(found.summary))


# ---------------------------------------------------------------------- what they share


def _links(run_id: str) -> dict[str, str]:
    here = f"/checkouts/{run_id}"
    return {"id": run_id, "self": here, "events": f"{here}/events", "cancel": f"{here}/cancel"}


def _id(request: Request) -> str:
    found: str = request.path_params["id"]
    if len(found) > LONGEST_ID:
        raise HTTPException(404)
    return found


async def _json(request: Request) -> dict[str, Any]:
    return msgspec.json.decode(await _body(request), type=dict[str, Any])


async def _body(request: Request) -> bytes:
    """The body as it came, if it is not too long."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_BODY:
            raise HTTPException(413)
    return body


def _refusal(status: int) -> Any:
    async def answer(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status)

    return answer


async def _unsigned(request: Request, error: Exception) -> Response:
    _log.warning("a webhook was refused: %s", error)
    return JSONResponse({"error": "the signature is not right"}, 401)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, InputValidationError)
    return JSONResponse({"errors": error.field_errors}, 422)


async def _not_now(request: Request, error: Exception) -> Response:
    """An answer that came before its question is to be sent again; one that came too late is not."""
    assert isinstance(error, NotResumable)
    early = error.status in ("pending", "running")
    return JSONResponse({"error": str(error)}, 503 if early else 409, {"Retry-After": "1"} if early else None)


async def _away(request: Request, error: Exception) -> Response:
    _log.error("the store is away: %s", error)
    return JSONResponse({"error": "try again in a moment"}, 503, {"Retry-After": "5"})


app = Starlette(
    lifespan=aioreactor.lifespan,
    routes=[
        Route("/checkouts", begin, methods=["POST"]),
        Route("/checkouts/{id}", show),
        Route("/checkouts/{id}/events", follow),
        Route("/checkouts/{id}/cancel", cancel, methods=["POST"]),
        Route("/webhooks/approval", approve, methods=["POST"]),
        Route("/books", books),
    ],
    exception_handlers={
        RunNotFound: _refusal(404),
        AlreadyResumed: _refusal(409),
        IdempotencyConflict: _refusal(409),
        NotResumable: _not_now,
        BadSignature: _unsigned,
        StoreError: _away,
        InputValidationError: _invalid,
        msgspec.DecodeError: _refusal(400),
    },
)
