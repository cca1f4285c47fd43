"""Coordination: the five primitives, alone and behind the engine.

Overview. A `Coordinator` belongs to one store. In each event loop it has a `Desk`: the way to the server, one `Inbox`
(a channel on which its waiters are told), one `Renewer` (a timer that keeps all its leases). Everything that has to be
atomic is one Lua script; time is the server's; a script that is sent again after a lost reply changes nothing.

Slots. A lock is a semaphore of one slot (`leases`, `slots`). Holders stand in a sorted set by the end of their lease,
so one that died is gone by itself; waiters stand in line in order of arrival, each with the moment until which it
counts as alive. Whoever gives a slot back gives it, in the same script, to the first in line who is alive, and tells
it: a hand-over is one trip. The receiver trusts its lease from when it last asked, so it needs no second trip to be
sure. A message that is lost is made good by asking again, each five seconds or when the first lease ends. A waiter
whose process died in line is passed by, since nobody listens on its channel; in a cluster, where a server cannot know
that, it holds what it was given for its grace (15 s or its TTL) at most.

Scopes. The owner is a chain of `Scope`: what a scope or one around it holds is entered again without the server
(`Entry`), one body at a time. The slot is given back when its last entry is left. `scopes.within` puts code into a
scope.

Gates. `Coordinator.acquire` takes what a body wants in the fixed order: turn, period, rate, lock, semaphore, period
again. What refuses raises its `ContentionError`, and everything taken before is given back, spent rates too. With a
`Parking`, the refused keeps a place in line and is called in this loop when the key was given to it, for `desk.GRACE`
seconds: then come back with the same tickets. `Holds` is given back with how the body ended (`release`), as if never
asked for (`give_back`), or kept over a gap without this process (`park`, then `Coordinator.adopt` anywhere).

Rings. What waits inside of holds notes that with these holds, and looks whether those that it waits for wait for it
(`watching`, `cycles`): the last one to come is refused for good, and its error has a ``cycle``.

Positions of ordered locks are handed out by `Coordinator.assign`, with a token that finds them again, and are plain
data. Until their turn, somebody has to give signs of life for them (`Coordinator.beat`); during it the renewer does.

For the engine, one body:

    scope = Scope(parent, "run-7/charge")                      # the parent's scope: the reactor's, or None
    terms = Terms(scope, label="run-7 charge", wait=0, on_lost=cancel_body, parking=Parking(wake, tickets=stored))
    holds = await coordinator.acquire([Wanted(lock, lock.key_for(args)), …], terms)     # or a ContentionError
    with within(scope):
        outcome = await body()
    await holds.release("success")                             # "halt", "failure"; "paused" keeps the position

After a refusal the places in line are in ``parking.tickets``: plain data, stored with the run, passed again by whoever
comes back, or given up with `Coordinator.withdraw`. ``admitted=True`` leaves out what is spent once per run. A run that
is parked while it holds: ``data = await holds.park(seconds)``, when no body runs inside it any more; later
``holds, lost = await coordinator.adopt(data, terms)``, and `acquire` anew what was lost. Code that starts another run
inside a body does so ``within(None)``. `Scope.find` tells what a scope holds, before a dispatch that would wait for it.

Failures. A renewal that finds a hold gone tells every entry (`on_lost`), once. A store that cannot be reached refuses
at acquire, and ends trust when the lease is over, by this process's clock. What cannot be given back ends by itself.
A cancelled acquire is followed by a release of its token, whether or not the server ever saw it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioreactor.definition import ports

if TYPE_CHECKING:
    from aioreactor.coordination.keys import SlotKind
    from aioreactor.coordination.reports import KeyReport


async def inspect(key: str) -> KeyReport:
    """Who holds a key and who waits, its counters, markers, and its line: a `reports.KeyReport`.

    Raises:
        StoreRequired: no store is configured.
        StoreError: the store is away.

    Cancellation: nothing happens.
    """
    report: KeyReport = await ports.launcher().coordinator().inspect(key)
    return report


async def force_release(key: str, kind: SlotKind = "lock") -> list[str]:
    """Take a lock (or all slots of a ``"semaphore"``) from whoever holds it; labels of who lost one. Logged.

    What the holders protect is cancelled when they next renew; whoever waits is let in at once, so both may be inside
    until then.

    Raises:
        StoreRequired: no store is configured.
        StoreError: the store is away.

    Cancellation: it was done, or not.
    """
    freed: list[str] = await ports.launcher().coordinator().force_release(key, kind)
    return freed
