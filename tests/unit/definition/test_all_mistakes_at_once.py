"""Every mistake of a class is reported when it is created, all in one error, each with where it is and its fix."""

# mypy: disable-error-code="empty-body"

import pickle

import pytest

from aioreactor import (
    DefinitionError,
    Reactor,
    Retry,
    Step,
    async_step,
    compose,
    from_input,
    interrupt,
    map_each,
    result,
    step,
    timer,
)


class Child(Reactor):
    user: int


class Charge(Step[int]):
    amount: int

    async def run(self) -> int: ...


def make_wrong() -> None:
    class Wrong(Reactor[str], on_failure="stop", deadline=-1, colour="red"):
        plan: str  # type: ignore[assignment]
        amount: int = "x"  # type: ignore[assignment]
        notify: int
        items: list[int] = [1]

        @step
        async def reserve(self, amont: int) -> int: ...

        @step(timeout=0, after=["resrve"])
        async def charge(self, reserve: str, wired: int = result("nothing")) -> int:  # type: ignore[misc]
            yield 1  # pyright: ignore[reportReturnType]

        @charge.undo
        async def refund(self, chrge: int) -> None: ...

        @step(name="notify")
        async def tell(self, user: int = from_input("usr")) -> None: ...

        @async_step
        async def mail(self) -> None: ...

        @mail.undo
        async def unmail(self) -> None: ...

        child = compose(Child, retries=Retry(3))
        used = Charge.step(amounts=1)
        approval = interrupt(int, resume="never")  # type: ignore[arg-type]
        pause = timer()

        @map_each(over=from_input("itms"), concurrency=0)
        async def each(self, amount: int) -> None: ...

        returns = "chargee"
        background = "sometimes"


WANTED = (
    ("class keyword 'colour' is not known", "there are: aliases, coordination"),
    ("on_failure='stop'", "use one of 'settle', 'cancel'"),
    ("deadline=-1", "seconds above 0"),
    ("step 'charge': timeout=0", "seconds above 0"),
    ("async step 'mail': undo would never run", "use compensate"),
    ("compose(Child): retries= does not apply", "put retries on its steps"),
    ("interrupt: resume='never'", "'inline' or 'background'"),
    ("timer: give a span", "or until="),
    ("map 'each': concurrency=0", "a whole number from 1"),
    ("'plan' is what Wrong has from Reactor", "another name"),
    ("'notify' is both an input and a step", "rename one"),
    ("field 'amount': its default 'x' does not fit int", "change the default or the annotation"),
    ("field 'items': a mutable default", "leave it empty, use a tuple"),
    ("step 'reserve', parameter 'amont': nothing provides it; the closest is 'amount'", "Rename it"),
    ("step 'charge': after='resrve': no such step", "the closest is 'reserve'"),
    ("step 'charge' is a generator function", "use return instead of yield"),
    ("step 'charge', parameter 'reserve': expects str, but the result of 'reserve' is int", "map it with transform="),
    ("step 'charge', parameter 'wired': result(nothing): this reactor has no step 'nothing'", ""),
    ("step 'notify', parameter 'user': from_input('usr'): there is no input 'usr'", ""),
    ("compose 'child', field 'user': nothing provides it", "Wire it (user=result(…)"),
    ("step 'used' (Charge): it has no field 'amounts' to wire", "the closest is 'amount'"),
    ("map 'each', over: from_input('itms'): there is no input 'itms'", "the closest is 'items'"),
    ("step 'each': no parameter is left for the item", "add one"),
    ("undo of step 'charge', parameter 'chrge': nothing provides it; the closest is 'charge'", "Rename it"),
    ("returns = chargee: no such step", "the closest is 'charge'"),
    ("background = 'sometimes'", "use after(step), before(step) or 'all'"),
)


def test_all_of_them_in_one_error_each_once_with_place_and_fix() -> None:
    with pytest.raises(DefinitionError) as caught:
        make_wrong()
    problems = caught.value.problems
    assert len(problems) == len(WANTED)
    for start, fix in WANTED:
        (found,) = (text for text in problems if text.startswith(start))
        assert fix in found


def test_the_text_is_a_numbered_list_under_the_reactors_name() -> None:
    with pytest.raises(DefinitionError) as caught:
        make_wrong()
    error = caught.value
    first, *lines = str(error).splitlines()
    assert first == f"make_wrong.<locals>.Wrong has {len(WANTED)} problems:"
    assert lines == [f"  {number}. {text}" for number, text in enumerate(error.problems, 1)]


def test_one_problem_is_singular_and_the_error_survives_pickling() -> None:
    error = DefinitionError("Wrong", ["one"])
    assert str(error) == "Wrong has 1 problem:\n  1. one"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.owner, again.problems, str(again)) == (DefinitionError, "Wrong", ("one",), str(error))


def test_an_unknown_option_of_a_step_is_one_of_them() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            @step(retry=Retry(3))  # type: ignore[call-overload, untyped-decorator]
            async def one(self, nothing: int) -> None: ...

    assert len(caught.value.problems) == 2
