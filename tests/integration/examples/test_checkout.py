"""The example of a check-out behind a web application, from the outside: real processes, real requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from aioreactor.embedded import EmbeddedServer
from tests.integration.examples.kit import Shop, approval_of, said, signed

FULL = {"left": {"lamp": 5, "desk": 1}, "cents": 0}
SOLD = {"left": {"lamp": 3, "desk": 1}, "cents": 5800}
UNTIL_PAUSED = ["run:reserve", "success:reserve", "interrupt:approval"]
AFTER = ["resume:approval", "run:charge", "success:charge", "run:pack", "success:pack", "end:completed"]


async def test_a_checkout_from_request_to_end(shop: Shop) -> None:
    await shop.worker()
    begun = await shop.begin(7)
    assert (begun.status_code, begun.headers["location"]) == (202, "/checkouts/checkout-7")
    told = []
    async with asyncio.timeout(30), shop.follow(7) as events:
        async for event in events:
            told.append(said(event))
            if told[-1] == "interrupt:approval":
                assert (await shop.approve(7)).status_code == 202
    assert told == [*UNTIL_PAUSED, *AFTER]
    assert await shop.status(7) == {
        "id": "checkout-7",
        "status": "completed",
        "waits_for": "",
        "result": "2 of lamp, packed",
    }
    assert await shop.books() == SOLD


async def test_without_a_worker_it_waits_for_one(shop: Shop) -> None:
    await shop.begin(7)
    assert (await shop.status(7))["status"] == "pending"
    early = await shop.approve(7)
    assert (early.status_code, early.headers["retry-after"]) == (503, "1")
    await shop.worker()
    await shop.until(7, "interrupt:approval")
    assert (await shop.approve(7)).status_code == 202
    await shop.until(7, "end:completed")


# ---------------------------------------------------------------------- beginning


async def test_an_order_is_begun_once(shop: Shop) -> None:
    answers = await asyncio.gather(*(shop.begin(7) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {202}
    other = await shop.begin(7, quantity=1)
    assert other.status_code == 409
    await shop.worker()
    await shop.until(7, "interrupt:approval")
    assert (await shop.begin(7)).status_code == 202
    assert await shop.books() == {"left": {"lamp": 3, "desk": 1}, "cents": 0}


async def test_all_mistakes_of_an_order_are_told(shop: Shop) -> None:
    answer = await shop.client.post("/checkouts", json={"order_id": "x", "email": "nobody", "colour": "red"})
    assert answer.status_code == 422
    assert sorted(answer.json()["errors"]) == ["colour", "email", "item", "order_id"]
    assert (await shop.begin(7, item="boat")).json() == {"errors": {"item": ["there is lamp, desk"]}}
    assert (await shop.client.get("/checkouts/checkout-7")).status_code == 404


@pytest.mark.parametrize(("body", "status"), [(b"[]", 400), (b"{", 400), (b"", 400), (b"x" * 20_000, 413)])
async def test_what_is_no_order_is_refused(shop: Shop, body: bytes, status: int) -> None:
    assert (await shop.client.post("/checkouts", content=body)).status_code == status


async def test_what_there_is_not_is_not_found(shop: Shop) -> None:
    for name in ("checkout-1", "x" * 300):
        assert (await shop.client.get(f"/checkouts/{name}")).status_code == 404
        assert (await shop.client.get(f"/checkouts/{name}/events")).status_code == 404
        assert (await shop.client.post(f"/checkouts/{name}/cancel")).status_code == 404
    assert (await shop.approve(1)).status_code == 404


async def test_what_is_out_of_stock_fails(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7, item="desk", quantity=2)
    await shop.until(7, "end:failed")
    found = await shop.status(7)
    assert (found["step"], found["error"]) == ("reserve", "there are not 2 of 'desk' left")
    assert await shop.books() == FULL


# ---------------------------------------------------------------------- the webhook


async def test_a_webhook_without_a_right_signature_changes_nothing(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7)
    await shop.until(7, "interrupt:approval")
    body = json.dumps(approval_of(7)).encode()
    now = time.time()
    right = signed(body)
    wrong = {
        "none": "",
        "of another secret": signed(body, secret="another"),
        "of another body": signed(body + b" "),
        "too old": signed(body, at=now - 400),
        "yet to come": signed(body, at=now + 400),
        "for another time": right.replace("t=", "t=1", 1),
        "cut off": right[:-1],
        "longer": right + "0",
        "in capitals": right.upper(),
        "not of this alphabet": right[:-1] + "\N{FULLWIDTH DIGIT ONE}",
        "without a time": right.partition(",")[2],
    }
    for name, signature in wrong.items():
        answer = await shop.client.post(
            "/webhooks/approval", content=body, headers=[(b"Webhook-Signature", signature.encode())]
        )
        assert (answer.status_code, answer.json()) == (401, {"error": "the signature is not right"}), name
    # An unsigned body is not even looked at.
    assert (await shop.webhook(b"\xff{", "t=1,v1=" + "0" * 64)).status_code == 401
    assert (await shop.status(7))["status"] == "paused"
    assert (await shop.webhook(body, right)).status_code == 202


async def test_a_webhook_that_comes_twice_counts_once(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7)
    await shop.until(7, "interrupt:approval")
    body = json.dumps(approval_of(7)).encode()
    signature = signed(body)
    answers = await asyncio.gather(*(shop.webhook(body, signature) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {202}
    await shop.until(7, "end:completed")
    # Recorded, and sent again when all is over; and signed anew, since the sender had no answer.
    assert (await shop.webhook(body, signature)).json() == {"status": "completed"}
    assert (await shop.webhook(body)).json() == {"status": "completed"}
    assert await shop.books() == SOLD


async def test_another_answer_to_the_same_question_is_refused(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7)
    await shop.until(7, "interrupt:approval")
    answers = await asyncio.gather(*(shop.approve(7, f"m-{number}", by=f"clerk {number}") for number in range(5)))
    assert sorted(answer.status_code for answer in answers) == [202, 409, 409, 409, 409]
    await shop.until(7, "end:completed")
    assert (await shop.approve(7, "m-9", approved=False)).status_code == 409
    assert await shop.books() == SOLD


async def test_an_answer_that_does_not_fit_is_refused_and_may_be_mended(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7)
    await shop.until(7, "interrupt:approval")
    for approval in ({"by": ""}, {"approved": "yes"}):
        assert (await shop.approve(7, **approval)).status_code == 400
    assert (await shop.webhook({**approval_of(7), "more": 1})).status_code == 400
    assert (await shop.approve(7)).status_code == 202
    await shop.until(7, "end:completed")


async def test_a_refusal_takes_back_the_reservation(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7)
    await shop.until(7, "interrupt:approval")
    assert (await shop.books())["left"]["lamp"] == 3
    assert (await shop.approve(7, approved=False)).status_code == 202
    await shop.until(7, "end:failed")
    found = await shop.status(7)
    assert (found["step"], found["error"]) == ("charge", "refused by ann")
    assert await shop.books() == FULL


async def test_the_office_has_a_command(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7)
    await shop.until(7, "interrupt:approval")
    # It goes over TCP.
    web = await shop.start("uvicorn", "checkout.web:app", "--port", "0")
    url = (await shop.says(web, "Uvicorn running on")).split()[4]
    for more, status in ((["--refuse"], "202"), ([], "409")):
        office = await shop.start("checkout.approve", "checkout-7", "ann", "--url", url, *more)
        await shop.says(office, status)
        await office.wait()
    await shop.until(7, "end:failed")
    assert (await shop.status(7))["error"] == "refused by ann"


# ---------------------------------------------------------------------- following


async def test_who_connects_again_gets_what_is_new(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7)
    async with asyncio.timeout(30), shop.follow(7) as events:
        first = [event async for event in _until(events, "success:reserve")]
    assert [said(event) for event in first] == UNTIL_PAUSED[:2]
    async with asyncio.timeout(30), shop.follow(7, first[-1]["id"]) as events:
        second = [event async for event in _until(events, "interrupt:approval")]
    assert [said(event) for event in second] == UNTIL_PAUSED[2:]
    await shop.approve(7)
    async with asyncio.timeout(30), shop.follow(7, second[-1]["id"]) as events:
        third = [event async for event in events]
    assert [said(event) for event in third] == AFTER
    ids = [int(event["id"]) for event in [*first, *second, *third] if "id" in event]
    assert ids == list(range(len(ids)))
    # After the end, and with an id that makes no sense.
    async with asyncio.timeout(30), shop.follow(7, str(ids[-1])) as events:
        assert [said(event) async for event in events] == ["end:completed"]
    async with asyncio.timeout(30), shop.follow(7, "x") as events:
        assert [said(event) async for event in events] == [*UNTIL_PAUSED, *AFTER]


async def test_a_client_that_goes_away_changes_nothing(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7)
    for _ in range(3):
        async with asyncio.timeout(30), shop.follow(7) as events:
            await anext(events)
    await shop.until(7, "interrupt:approval")
    await shop.approve(7)
    await shop.until(7, "end:completed")
    assert await shop.books() == SOLD


async def test_a_web_application_that_is_stopped_lets_go_of_those_who_follow(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7)
    async with asyncio.timeout(30), shop.follow(7) as events:
        last = [event["id"] async for event in _until(events, "interrupt:approval")][-1]
        shop.web.terminate()
        # An event stream that breaks off has a browser connect again.
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(events)
    await shop.stop(shop.web)
    await shop.open()
    await shop.approve(7)
    async with asyncio.timeout(30), shop.follow(7, last) as events:
        assert [said(event) async for event in events] == AFTER


# ---------------------------------------------------------------------- cancelling


async def test_one_that_waits_is_cancelled_and_taken_back(shop: Shop) -> None:
    await shop.worker()
    await shop.begin(7)
    await shop.until(7, "interrupt:approval")
    answer = await shop.client.post("/checkouts/checkout-7/cancel")
    assert answer.json() == {"status": "cancelled", "taken_back": ["undo:reserve"]}
    assert await shop.books() == FULL
    assert (await shop.client.post("/checkouts/checkout-7/cancel")).status_code == 409
    assert (await shop.approve(7)).status_code == 409


async def test_one_that_a_worker_executes_is_cancelled_there(shop: Shop) -> None:
    await shop.worker(packing=600)
    await shop.begin(7)
    await shop.until(7, "interrupt:approval")
    await shop.approve(7)
    await shop.until(7, "success:charge")
    assert await shop.books() == SOLD
    answer = await shop.client.post("/checkouts/checkout-7/cancel")
    assert answer.json() == {"status": "cancelled", "taken_back": ["undo:charge", "undo:reserve"]}
    assert (await shop.status(7))["status"] == "cancelled"
    assert await shop.books() == FULL


async def test_one_that_nobody_has_begun_is_cancelled_with_nothing_to_take_back(shop: Shop) -> None:
    await shop.begin(7)
    answer = await shop.client.post("/checkouts/checkout-7/cancel")
    assert answer.json() == {"status": "cancelled", "taken_back": []}


async def test_a_worker_that_is_killed_has_its_checkout_taken_over(shop: Shop) -> None:
    shop.environment["AIOREACTOR_LEASE_TTL"] = "1"
    victim = await shop.worker(packing=600)
    await shop.begin(7)
    await shop.until(7, "interrupt:approval")
    await shop.approve(7)
    await shop.until(7, "success:charge")
    victim.kill()
    await victim.wait()
    await shop.worker()
    await shop.until(7, "end:completed")
    assert await shop.books() == SOLD


async def test_while_the_store_is_away_requests_are_to_be_tried_again(shop: Shop) -> None:
    own = EmbeddedServer.start()
    try:
        await shop.stop(shop.web)
        await shop.open(AIOREACTOR_REDIS_URL=own.url, AIOREACTOR_STORE_RETRY_FOR="0.2")
        assert (await shop.begin(7)).status_code == 202
    finally:
        own.stop()
    for answer in (await shop.begin(7), await shop.approve(7), await shop.client.get("/checkouts/checkout-7")):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def _until(events: AsyncIterator[dict[str, str]], last: str) -> AsyncIterator[dict[str, str]]:
    async for event in events:
        yield event
        if said(event) == last:
            return
