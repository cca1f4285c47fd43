"""Which waits would never end, and which of them is to fail for the others: all who look agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioreactor.coordination.cycles import Cycle, Survey, Wait, cycle_of


def survey(*waits: str, undoing: str = "") -> Survey:
    """From texts as ``"a: 1 2 < 3"``: wait ``a`` is for what holds 1 and 2 have, and is inside of hold 3."""
    found = Survey()
    for number, text in enumerate(waits):
        token, rest = text.split(": ")
        blockers, _, around = rest.partition(" < ")
        found.waits[token] = Wait(token, "lock", f"k{token}", number, undoing=token in undoing)
        found.blockers[token] = tuple(blockers.split())
        found.labels[token] = f"run {token}"
        for held in around.split():
            found.inside[held] = (*found.inside.get(held, ()), token)
        found.labels |= {held: f"hold {held}" for held in found.blockers[token]}
    return found


def found(seen: Survey, token: str) -> tuple[str, str] | None:
    cycle = cycle_of(seen, token)
    if cycle is None:
        return None
    return "".join(sorted(cycle.members)), cycle.fails.token if cycle.fails is not None else "-"


def test_two_runs_that_await_each_others_keys() -> None:
    seen = survey("a: 2 < 1", "b: 1 < 2")
    assert found(seen, "a") == found(seen, "b") == ("ab", "b")
    assert found(survey("a: 2 < 1", "b: 1 < 2", undoing="b"), "b") == ("ab", "a")
    assert found(survey("a: 2 < 1", "b: 1 < 2", undoing="ab"), "b") == ("ab", "-")


def test_a_cycle_is_told_from_the_one_who_asks() -> None:
    cycle = cycle_of(survey("a: 2 < 1", "b: 3 < 2", "c: 1 < 3"), "b")
    assert isinstance(cycle, Cycle)
    assert str(cycle) == (
        "run b waits for lock 'kb', held by hold 3; run c waits for lock 'kc', held by hold 1; "
        "run a waits for lock 'ka', held by hold 2"
    )


def test_who_only_leads_to_a_cycle_is_not_part_of_it() -> None:
    seen = survey("a: 2 < 1", "b: 1 < 2", "c: 1 < 3")
    assert (found(seen, "c"), found(seen, "a")) == (None, ("ab", "b"))


def test_a_semaphore_waits_for_the_first_holder_that_goes_on() -> None:
    assert found(survey("a: 2 3 < 1", "b: 1 < 2"), "a") is None
    assert found(survey("a: 2 3 < 1", "b: 1 < 2"), "b") is None
    assert found(survey("a: 2 3 < 1", "b: 1 < 2", "c: 1 < 3"), "b") == ("abc", "c")
    assert found(survey("a: 2 3 < 1", "b: 1 < 2", "c: 4 < 3"), "b") is None


def test_one_wait_inside_is_enough_to_keep_a_hold() -> None:
    seen = survey("a: 2 < 1", "x: 9 < 1", "b: 1 < 2")
    assert (found(seen, "a"), found(seen, "x")) == (("ab", "b"), None)


def test_a_run_in_its_own_way() -> None:
    """Two composed children of one run: each holds what the other one waits for."""
    seen = survey("a: 2 < 0 1", "b: 1 < 0 2")
    assert found(seen, "a") == ("ab", "b")


@st.composite
def surveys(draw: st.DrawFn) -> Survey:
    held = st.lists(st.integers(0, 5), min_size=1, max_size=2, unique=True)
    texts = []
    for token in "abcdef"[: draw(st.integers(1, 6))]:
        blockers, around = draw(held), draw(held)
        texts.append(f"{token}: {' '.join(map(str, blockers))} < {' '.join(map(str, around))}")
    return survey(*texts, undoing=draw(st.sampled_from(["", "a", "bc", "abcdef"])))


@given(surveys())
def test_everybody_in_a_cycle_sees_the_same_and_one_failure_after_the_other_ends_all(seen: Survey) -> None:
    while True:
        cycles = {token: cycle for token in seen.waits if (cycle := cycle_of(seen, token)) is not None}
        for cycle in cycles.values():
            assert all(cycles[member].members == cycle.members for member in cycle.members)
            assert len({cycles[member].fails for member in cycle.members}) == 1
            assert len(cycle.links) >= 1
        failing = [cycle.fails for cycle in cycles.values() if cycle.fails is not None]
        if not failing:
            break
        _fail(seen, failing[0].token)


def _fail(seen: Survey, token: str) -> None:
    """Its run is rolled back, and holds nothing any more."""
    held = {each for each, inside in seen.inside.items() if token in inside}
    for other, blockers in list(seen.blockers.items()):
        if other == token or held & set(blockers):
            del seen.waits[other], seen.blockers[other]
