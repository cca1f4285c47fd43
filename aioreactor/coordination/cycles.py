"""Waits that would never end: who is inside a hold waits for somebody who is inside another one, and so on, in a ring.

Pure. A `Survey` is what was seen of the store: waits, who holds what they wait for, and who waits inside those holds. A
wait is stuck when all holders are; a holder is stuck when one that is inside of it is, since a hold of a run is given
back when everything inside has ended. A stuck wait that leads back to itself is in a `Cycle`: one of these has to fail,
the one that came last and is no undo, and everybody who looks at the same cycle agrees which one that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from aioreactor.coordination.keys import SlotKind


@dataclass(frozen=True, slots=True)
class Wait:
    """One that stands in line while those around it hold something.

    Attributes:
        token: Its place in line.
        since: When others could see it first, in microseconds by the server's clock; 0 if that is not known.
        undoing: It is part of a rollback, which is not to fail for others.
    """

    token: str
    kind: SlotKind
    key: str
    since: int = 0
    undoing: bool = False

    @property
    def rank(self) -> tuple[int, str]:
        """Who came last; no two have the same."""
        return self.since, self.token


class Link(NamedTuple):
    """One part of a cycle, for people. ``waiter`` and ``holder`` are labels: a run, and where in it."""

    waiter: str
    kind: SlotKind
    key: str
    holder: str

    def __str__(self) -> str:
        return f"{self.waiter} waits for {self.kind} {self.key!r}, held by {self.holder}"


@dataclass(frozen=True, slots=True)
class Cycle:
    """Waits in a ring.

    Attributes:
        links: One way around it.
        members: Tokens of all waits that are part of it.
        fails: The one that has to fail; None when all are rollbacks, whose waits end by themselves.
    """

    links: tuple[Link, ...]
    members: frozenset[str]
    fails: Wait | None

    def __str__(self) -> str:
        return "; ".join(map(str, self.links))


@dataclass(slots=True)
class Survey:
    """What was seen of the store.

    Attributes:
        waits: By token; only those that do stand in line for something that is taken.
        labels: Of waits and of holders, by token.
        blockers: Tokens of all holders of what a wait is for.
        inside: Tokens of the waits inside a hold, by the token of that.
    """

    waits: dict[str, Wait] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    blockers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    inside: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def behind(self, token: str, among: set[str]) -> list[tuple[str, str]]:
        """What a wait leads to: pairs of a holder and a wait inside of that."""
        return [(held, each) for held in self.blockers[token] for each in self.inside.get(held, ()) if each in among]


def cycle_of(survey: Survey, token: str) -> Cycle | None:
    """The cycle that a wait is part of."""
    stuck = _stuck(survey)
    if token not in stuck:
        return None
    reached = _reached(survey, token, stuck)
    if token not in reached:
        return None
    members = {each for each in reached if token in _reached(survey, each, stuck)}
    able = [survey.waits[each] for each in members if not survey.waits[each].undoing]
    last = max(able, key=lambda wait: wait.rank, default=None)
    return Cycle(tuple(_around(survey, token, members)), frozenset(members), last)


def _stuck(survey: Survey) -> set[str]:
    """The largest set of waits of which each waits for holders that all have a wait of the set inside."""
    stuck = set(survey.waits)
    while free := [each for each in stuck if not _is_stuck(survey, each, stuck)]:
        stuck.difference_update(free)
    return stuck


def _is_stuck(survey: Survey, token: str, stuck: set[str]) -> bool:
    return all(any(each in stuck for each in survey.inside.get(held, ())) for held in survey.blockers[token])


def _reached(survey: Survey, token: str, among: set[str]) -> set[str]:
    found: set[str] = set()
    todo = [token]
    while todo:
        for _, each in survey.behind(todo.pop(), among):
            if each not in found:
                found.add(each)
                todo.append(each)
    return found


def _around(survey: Survey, token: str, members: set[str]) -> list[Link]:
    """A shortest way from a wait back to itself."""
    came: dict[str, tuple[str, str]] = {}
    todo = [token]
    for current in todo:
        for held, each in survey.behind(current, members):
            if each not in came:
                came[each] = (current, held)
                todo.append(each)
    return list(_links(survey, token, came))


def _links(survey: Survey, token: str, came: dict[str, tuple[str, str]]) -> Iterable[Link]:
    found: list[Link] = []
    current = token
    while not found or current != token:
        current, held = came[current]
        wait = survey.waits[current]
        found.append(Link(survey.labels[current], wait.kind, wait.key, survey.labels[held]))
    return reversed(found)
