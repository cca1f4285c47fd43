"""Policy stands in the class header; every value that makes no sense is refused with what to write instead."""

# mypy: disable-error-code="empty-body"

from typing import Any

import pytest

from aioreactor import DefinitionError, Lock, OrderedLock, Period, RateLimit, Reactor, Retry, Semaphore, Step, step


class Watch:
    pass


def test_every_keyword_arrives() -> None:
    watch, lock = Watch(), Lock("a")

    class Full(
        Reactor,
        name="full",
        aliases=["f"],
        version="2",
        retries=Retry(3),
        coordination=[lock],
        middlewares=[watch],
        max_concurrency=2,
        deadline=60,
        on_failure="cancel",
        on_cancel="detach",
        on_contention="enqueue",
        settle_timeout=1,
        undo_timeout=2.5,
        rollback_timeout=3,
        durability="batched",
        retention=86400,
        queue="slow",
    ):
        """All of them."""

    options = Full.plan.options
    assert {name: getattr(options, name) for name in type(options).__slots__} == {
        "name": "full",
        "aliases": ("f",),
        "version": "2",
        "retries": Retry(3),
        "coordination": (lock,),
        "middlewares": (watch,),
        "max_concurrency": 2,
        "deadline": 60,
        "on_failure": "cancel",
        "on_cancel": "detach",
        "on_contention": "enqueue",
        "settle_timeout": 1,
        "undo_timeout": 2.5,
        "rollback_timeout": 3,
        "durability": "batched",
        "retention": 86400,
        "queue": "slow",
    }


def test_nothing_given_means_as_the_settings_say() -> None:
    class Empty(Reactor): ...

    options = Empty.plan.options
    assert {getattr(options, name) for name in type(options).__slots__} == {None, ()}


@pytest.mark.parametrize(
    ("keyword", "given", "problem"),
    [
        ("on_failure", "stop", "on_failure='stop': use one of 'settle', 'cancel'"),
        ("on_cancel", "settle", "on_cancel='settle': use one of 'rollback', 'abort', 'detach'"),
        ("on_contention", "wait", "on_contention='wait': use one of 'raise', 'enqueue'"),
        ("durability", "always", "durability='always': use one of 'step', 'batched', 'exit', 'none'"),
        ("deadline", 0, "deadline=0: seconds above 0"),
        ("deadline", "60", "deadline='60': seconds above 0"),
        ("settle_timeout", -1, "settle_timeout=-1: seconds above 0"),
        ("undo_timeout", True, "undo_timeout=True: seconds above 0"),
        ("rollback_timeout", float("nan"), "rollback_timeout=nan: seconds above 0"),
        ("retention", 0.0, "retention=0.0: seconds above 0"),
        ("max_concurrency", 0, "max_concurrency=0: a whole number from 1 (or leave it out for no bound)"),
        ("max_concurrency", 1.5, "max_concurrency=1.5: a whole number from 1 (or leave it out for no bound)"),
        ("retries", 3, "retries=3: use Retry(max_attempts=…)"),
        ("coordination", ["a"], "class header: coordination='a': use Lock, Semaphore, RateLimit, …"),
    ],
)
def test_a_value_that_makes_no_sense(keyword: str, given: Any, problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor, **{keyword: given}): ...

    assert caught.value.problems == (problem,)


def test_retries_of_the_header_that_make_no_sense_beside_a_step() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor, retries=3):
            @step
            async def one(self) -> None: ...

    assert caught.value.problems == ("retries=3: use Retry(max_attempts=…)",)


def test_a_keyword_that_is_not_known_is_named_with_those_there_are() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor, timeout=3): ...

    assert caught.value.problems == (
        "class keyword 'timeout' is not known; there are: aliases, coordination, deadline, durability, "
        "max_concurrency, middlewares, name, on_cancel, on_contention, on_failure, queue, retention, retries, "
        "rollback_timeout, settle_timeout, undo_timeout, version",
    )


@pytest.mark.parametrize("keyword", ["coordination", "middlewares"])
def test_one_thing_instead_of_a_list_is_taken_or_refused_as_a_definition_mistake(keyword: str) -> None:
    thing = Lock("a") if keyword == "coordination" else Watch()
    try:

        class One(Reactor, **{keyword: thing}): ...

    except DefinitionError:
        return
    assert getattr(One.plan.options, keyword) == (thing,)


def test_one_lock_on_a_step_is_taken_or_refused_as_a_definition_mistake() -> None:
    lock = Lock("a")
    try:

        class One(Reactor):
            @step(coordination=lock)  # type: ignore[call-overload, untyped-decorator]
            async def one(self) -> None: ...

    except DefinitionError:
        return
    assert One.plan["one"].coordination == (lock,)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retries": 3}, "step 'one': retries=3: use Retry(max_attempts=…)"),
        ({"timeout": 0}, "step 'one': timeout=0: seconds above 0"),
        ({"timeout": "1"}, "step 'one': timeout='1': seconds above 0"),
        ({"coordination": [3]}, "step 'one': coordination=3: use Lock, Semaphore, RateLimit, …"),
    ],
)
def test_policy_of_a_step_that_makes_no_sense(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            @step(**options)
            async def one(self) -> None: ...

    assert caught.value.problems == (problem,)


def test_policy_of_a_step_arrives() -> None:
    limit = RateLimit("k", 3, "second")

    class Policy(Reactor):
        @step(retries=Retry(3), timeout=1.5, coordination=[limit], description="Does it.\nWell.")
        async def one(self) -> None: ...

        @step
        async def two(self) -> None:
            """From the docstring.

            Not this.
            """

    one, two = Policy.plan
    assert (one.retry, one.timeout, one.coordination, one.description) == (Retry(3), 1.5, (limit,), "Does it.")
    assert (two.retry, two.timeout, two.coordination, two.description) == (Retry(), None, (), "From the docstring.")


def test_the_header_of_a_step_class_is_checked_when_it_is_created() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Step[int], retries=3, timeout=-1, queue="x"):
            once: int  # type: ignore[assignment]

            async def run(self) -> int: ...

    assert caught.value.owner.startswith("step class ")
    assert caught.value.problems == (
        "keyword 'queue' is not one of retries, timeout, coordination, output, name, aliases, description",
        "class header: retries=3: use Retry(max_attempts=…)",
        "class header: timeout=-1: seconds above 0",
        "field 'once' hides Step.once; give it another name",
    )


def test_the_coordination_of_a_step_class_is_checked_when_it_is_created() -> None:
    with pytest.raises(DefinitionError):

        class Wrong(Step[int], coordination=["a"]):
            async def run(self) -> int: ...


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lock(""),
        lambda: Lock(3),  # type: ignore[arg-type]
        lambda: Lock("a", ttl=0.5),
        lambda: Lock("a", wait=-1),
        lambda: Semaphore("a", 0),
        lambda: Semaphore("a", 1, ttl=0),
        lambda: RateLimit("a", 3),
        lambda: RateLimit("a", per="second"),
        lambda: RateLimit("a", 0, "second"),
        lambda: RateLimit("a", 1, "second", limits={"minute": 1}),
        lambda: RateLimit("a", limits={"minute": 0}),
        lambda: RateLimit("a", 1, "second", cost=0),
        lambda: RateLimit("a", 1, "second", algorithm="leaky"),  # type: ignore[arg-type]
        lambda: Period("a", every="fortnight"),
        lambda: Period("a", every=0),
        lambda: OrderedLock("a", poison_after=0),
    ],
)
def test_a_primitive_that_makes_no_sense(make: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


def test_primitives_keep_what_they_were_given() -> None:
    assert RateLimit("a", 3, "second").limits == {"second": 3}
    assert RateLimit("a", limits={"second": 1, "minute": 9}).limits == {"second": 1, "minute": 9}
    assert RateLimit("named").limits is None
    assert (Lock("a").ttl, Lock("a", ttl=1).ttl, Lock("a").on_lost) == (60, 1, "cancel")
    assert (Semaphore("a", 2, 5).limit, Semaphore("a", 2, 5).ttl) == (2, 5)
    assert (Period("a", 90, "Europe/Berlin").every, Period("a").every) == (90, "day")
    assert (OrderedLock("a").poison_after, OrderedLock("a").strict) == (600, True)
    assert Lock(lambda i: f"order:{i['id']}").key_for({"id": 7}) == "order:7"
    assert Lock("fixed").key_for(None) == "fixed"
