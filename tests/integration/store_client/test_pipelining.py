"""Commands of many tasks travel together, and each reply finds its task."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioreactor.store import link
from aioreactor.store.calls import Call
from aioreactor.store.client import StoreClient
from aioreactor.store.errors import ReplyError
from aioreactor.store.wire import Wire
from tests.integration.store_client.fakes import proxied
from tests.integration.store_client.samples import PUSH, Connect, entries, gather, push_script
from tests.integration.store_client.servers import Server


async def test_what_is_issued_in_one_iteration_leaves_in_one_write(connect: Connect, shared_server: Server) -> None:
    async with proxied(shared_server.path) as proxy:
        client = connect(proxy.url)
        await client.execute("PING")
        proxy.writes.clear()
        replies = await asyncio.gather(*(client.execute("ECHO", i) for i in range(500)))
        assert replies == [str(i).encode() for i in range(500)]
        assert len(proxy.writes) == 1


async def test_commands_are_applied_in_the_order_of_their_issue(client: StoreClient, key: str) -> None:
    await asyncio.gather(*(client.run(PUSH, [key], [i]) for i in range(1000)))
    assert await entries(client, key) == list(range(1000))


async def test_commands_issued_before_the_first_connection_keep_their_order(
    connect: Connect, shared_server: Server, key: str
) -> None:
    client = connect(shared_server.url)
    lengths = await asyncio.gather(*(client.run(PUSH, [key], [i]) for i in range(300)))
    assert [reply.values for reply in lengths] == [[i + 1] for i in range(300)]


async def test_an_error_reaches_only_its_own_caller(client: StoreClient, key: str) -> None:
    await client.execute("SET", key, "text")
    replies = await gather(client.execute("ECHO", "a"), client.execute("LPUSH", key, 1), client.execute("ECHO", "b"))
    assert replies[0] == b"a"
    assert replies[2] == b"b"
    assert isinstance(replies[1], ReplyError)
    assert (replies[1].code, replies[1].command) == ("WRONGTYPE", "LPUSH")


async def test_a_thousand_tasks_of_many_commands_each(client: StoreClient) -> None:
    async def one(number: int) -> None:
        for turn in range(10):
            mark = f"{number}-{turn}".encode()
            assert await client.execute("ECHO", mark) == mark

    await asyncio.gather(*(one(i) for i in range(1000)))


async def test_replies_in_pieces_are_put_together(connect: Connect, shared_server: Server) -> None:
    async with proxied(shared_server.path) as proxy:
        client = connect(proxy.url)
        await client.execute("PING")
        proxy.chop = 3
        words = [f"word {i}".encode() * 5 for i in range(50)]
        assert await asyncio.gather(*(client.execute("ECHO", w) for w in words)) == words


async def test_big_values_and_small_ones_share_a_connection(client: StoreClient, key: str) -> None:
    big = random.randbytes(1 << 20)

    async def one(number: int) -> None:
        own = big + str(number).encode()
        await client.execute("SET", f"{key}{number}", own)
        assert await client.execute("GET", f"{key}{number}") == own
        await client.execute("DEL", f"{key}{number}")

    async def small(number: int) -> None:
        for _ in range(20):
            assert await client.execute("ECHO", number) == str(number).encode()

    await asyncio.gather(*(one(i) for i in range(20)), *(small(i) for i in range(50)))


async def test_a_huge_batch_is_split_and_waits_for_the_socket(
    connect: Connect, server: Server, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain = Wire._write

    def noted(self: Wire, chunks: list[bytes], calls: Sequence[Call | None]) -> None:
        sizes.append(sum(map(len, chunks)))
        plain(self, chunks, calls)
        assert self._transport.get_write_buffer_size() < 2 * 1024 * 1024

    monkeypatch.setattr(Wire, "_write", noted)
    client = connect(server.url)
    value = bytes(10_000)
    await asyncio.gather(*(client.execute("SET", f"{key}{i}", value) for i in range(2000)))
    assert max(sizes) < link.BATCH_BYTES + 11_000
    assert len(sizes) > 100
    assert await client.execute("DBSIZE") == 2000


async def test_lanes_are_separate_connections(client: StoreClient) -> None:
    ids = await asyncio.gather(
        client.execute("CLIENT", "ID"),
        client.execute("CLIENT", "ID"),
        client.execute("CLIENT", "ID", lane="lease"),
    )
    assert ids[0] == ids[1] != ids[2]


async def test_a_lane_that_was_not_declared_is_an_error(client: StoreClient) -> None:
    with pytest.raises(ValueError, match="no lane 'leases': default, lease"):
        await client.execute("PING", lane="leases")


STEP = st.tuples(
    st.integers(0, 4),  # iterations before it is issued
    st.sampled_from(["echo", "push", "other", "error", "big"]),
    st.one_of(st.none(), st.integers(0, 6)),  # iterations until it is cancelled
)


@given(st.lists(STEP, min_size=1, max_size=40))
def test_any_interleaving_gives_everybody_their_own_reply(
    shared_server: Server, steps: list[tuple[int, str, int | None]]
) -> None:
    other = push_script("other")

    async def one(client: StoreClient, number: int, wait: int, kind: str, issued: list[int]) -> None:
        for _ in range(wait):
            await asyncio.sleep(0)
        if kind in {"push", "other"}:
            issued.append(number)
            reply = await client.run(PUSH if kind == "push" else other, ["{h}log"], [number])
            assert reply.word == "OK"
        elif kind == "error":
            with pytest.raises(ReplyError, match=f"unknown command 'NO{number}'"):
                await client.execute(f"NO{number}")
        else:
            mark = f"{number} ".encode() * (50_000 if kind == "big" else 1)
            assert await client.execute("ECHO", mark) == mark

    async def cancel_after(task: asyncio.Task[None], iterations: int | None) -> None:
        if iterations is not None:
            for _ in range(iterations):
                await asyncio.sleep(0)
            task.cancel()

    async def main() -> None:
        issued: list[int] = []
        async with StoreClient(shared_server.url) as client:
            await client.execute("DEL", "{h}log")
            tasks = [asyncio.create_task(one(client, i, w, k, issued)) for i, (w, k, _) in enumerate(steps)]
            await asyncio.gather(*(cancel_after(t, c) for t, (_, _, c) in zip(tasks, steps, strict=True)))
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for result, (_, _, cancelled) in zip(results, steps, strict=True):
                assert result is None or (cancelled is not None and isinstance(result, asyncio.CancelledError))
            applied = await entries(client, "{h}log")
            sure = {i for i, r in enumerate(results) if r is None and steps[i][1] in {"push", "other"}}
            assert sure <= set(applied)
            order = {number: place for place, number in enumerate(issued)}
            assert [order[a] for a in applied] == sorted(order[a] for a in applied)
            assert len(applied) == len(set(applied))

    asyncio.run(main())
