"""Key names cannot be broken out of; Lua files keep their conventions."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from redis.crc import key_slot

from aioreactor.store import keys
from aioreactor.store.answers import Query
from aioreactor.store.keys import KeySpace, run_id_for_key
from aioreactor.store.records import NewRun
from aioreactor.store.rows import tags_of
from aioreactor.store.scripts import ScriptLibrary

TEXT = st.text(min_size=1, max_size=keys.MAX_ID_LENGTH)


@given(TEXT)
def test_all_keys_of_a_run_share_a_slot(run_id: str) -> None:
    names = KeySpace("p", others=("parks",)).of_run(run_id)
    assert len(names) == len(set(names)) == 5
    assert len({key_slot(name.encode()) for name in names}) == 1
    for name in names:
        assert name.startswith("p:{")
        assert name.count("{") == name.count("}") == 1
        assert name.isascii()
        assert name.isprintable()


@given(TEXT, TEXT)
def test_different_ids_have_different_keys(one: str, other: str) -> None:
    space = KeySpace()
    ours = {*space.of_run(one), space.done_channel(one), space.requests_channel(one)}
    theirs = {*space.of_run(other), space.done_channel(other), space.requests_channel(other)}
    assert ours == theirs if one == other else not ours & theirs


@given(TEXT)
def test_no_id_reaches_the_index(run_id: str) -> None:
    space = KeySpace()
    assert not set(space.of_run(run_id)) & {space.rows(), space.live(), space.expiring(), space.listing("all")}
    assert not any(name.startswith("aioreactor:{:index}") for name in space.of_run(run_id))


@given(TEXT, TEXT, TEXT, TEXT)
def test_idempotency_keys_of_different_reactors_stay_apart(
    reactor: str, key: str, other_reactor: str, other_key: str
) -> None:
    same = (reactor, key) == (other_reactor, other_key)
    assert (run_id_for_key(reactor, key) == run_id_for_key(other_reactor, other_key)) == same


@given(st.lists(TEXT, max_size=5), TEXT, TEXT)
def test_labels_are_one_a_line_and_tags_come_back(tags: list[str], reactor: str, parent: str) -> None:
    labels = NewRun(reactor=reactor, tags=tuple(tags), parent=parent).labels()
    assert tags_of(labels) == tuple(dict.fromkeys(tags))
    assert set(Query(reactor=reactor, parent=parent).labels()) <= set(labels.split("\n"))


@pytest.mark.parametrize("prefix", ["", "a{b", "}", "a b", "ü", "x" * 65])
def test_a_prefix_that_would_break_slots_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        KeySpace(prefix)


def test_every_script_is_what_its_header_says() -> None:
    library = ScriptLibrary("aioreactor.store")
    assert library.audit() == []
    assert len(library) == 35
    for name in library:
        assert library[name].header.summary
