"""Undo and compensate are registered on the step and wired by the same rules, with two extra names."""

# mypy: disable-error-code="empty-body"

from typing import Any

import pytest
from msgspec import Struct

from aioreactor import Context, DefinitionError, Reactor, Step, async_step, from_input, map_each, result, step
from aioreactor.plan.model import Source


class User(Struct):
    id: int
    name: str


def sources(call: Any) -> dict[str, Source]:
    return {arg.parameter: arg.source for arg in call.args}


def test_undo_gets_its_result_under_the_steps_name_and_as_result() -> None:
    class Booking(Reactor):
        hotel: str

        @step
        async def book(self, hotel: str) -> int: ...

        @book.undo
        async def unbook(self, book: int, result: int, hotel: str, ctx: Context) -> None: ...

    assert sources(Booking.plan["book"].undo) == {
        "book": Source.OWN_RESULT,
        "result": Source.OWN_RESULT,
        "hotel": Source.INPUT,
        "ctx": Source.CONTEXT,
    }


def test_compensate_gets_the_error() -> None:
    class Booking(Reactor):
        hotel: str

        @step
        async def book(self, hotel: str) -> int: ...

        @book.compensate
        def tidy(self, error: BaseException, hotel: str) -> None: ...

    call = Booking.plan["book"].compensate
    assert sources(call) == {"error": Source.ERROR, "hotel": Source.INPUT}
    assert call is not None
    assert call.is_async is False
    assert Booking.plan["book"].undo is None


def test_they_may_ask_for_whatever_the_step_was_wired_to() -> None:
    class Booking(Reactor):
        hotel: str

        @step
        async def load(self) -> User: ...

        @step
        async def book(self, who: User = result(load), where: str = from_input("hotel")) -> int: ...

        @book.undo
        async def unbook(self, who: User, where: str, load: User) -> None: ...

        @book.compensate
        async def tidy(self, who: User, where: str) -> None: ...

    assert sources(Booking.plan["book"].undo) == {"who": Source.RESULT, "where": Source.INPUT, "load": Source.RESULT}
    assert sources(Booking.plan["book"].compensate) == {"who": Source.RESULT, "where": Source.INPUT}


def test_a_mapped_argument_is_seen_again_as_it_was() -> None:
    class Booking(Reactor):
        hotel: str

        @step
        async def book(self, size: int = from_input("hotel", transform=len)) -> int: ...

        @book.undo
        async def unbook(self, size: int) -> None: ...

    assert sources(Booking.plan["book"].undo) == {"size": Source.ARGUMENT}


def test_an_argument_that_came_by_a_path_has_the_type_of_the_part() -> None:
    class Booking(Reactor):
        user: User

        @step
        async def load(self) -> User: ...

        @step
        async def book(self, number: int = result(load, "id"), name: str = from_input("user", "name")) -> int: ...

        @book.undo
        async def unbook(self, number: int) -> None: ...

        @book.compensate
        async def tidy(self, name: str) -> None: ...


def test_they_may_ask_for_a_parameter_that_kept_its_default() -> None:
    class Booking(Reactor):
        @step
        async def book(self, nights: int = 3) -> int: ...

        @book.undo
        async def unbook(self, nights: int) -> None: ...


def test_they_are_wired_with_explicit_sources_too() -> None:
    class Booking(Reactor):
        hotel: str

        @step
        async def load(self) -> User: ...

        @step(after=[load])
        async def book(self) -> int: ...

        @book.undo
        async def unbook(self, number: int = result(load, "id"), where: str = from_input("hotel")) -> None: ...

    assert sources(Booking.plan["book"].undo) == {"number": Source.RESULT, "where": Source.INPUT}


def test_they_cannot_use_a_result_that_may_not_be_there() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Booking(Reactor):
            @step
            async def book(self) -> int: ...

            @step
            async def other(self) -> int: ...

            @book.undo
            async def unbook(self, other: int) -> None: ...

            @book.compensate
            async def tidy(self, book: int, late: int = result(other)) -> None: ...

    fix = "is not sure to be there; use what the step itself received, or let the step come after"
    assert caught.value.problems == (
        f"undo of step 'book', parameter 'other': the result of 'other' {fix} 'other'",
        f"compensate of step 'book', parameter 'book': the result of 'book' {fix} 'book'",
        f"compensate of step 'book', parameter 'late': the result of 'other' {fix} 'other'",
    )


def test_results_of_steps_further_up_are_in_reach() -> None:
    class Booking(Reactor):
        @step
        async def first(self) -> int: ...

        @step
        async def second(self, first: int) -> str: ...

        @step
        async def third(self, second: str) -> int: ...

        @third.undo
        async def unthird(self, first: int, second: str) -> None: ...

    assert sources(Booking.plan["third"].undo) == {"first": Source.RESULT, "second": Source.RESULT}


def test_nothing_provides_a_parameter_of_an_undo() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Booking(Reactor):
            hotel: str

            @step
            async def book(self) -> int: ...

            @book.undo
            async def unbook(self, hotell: str, error: BaseException) -> None: ...

    first, second = caught.value.problems
    assert first.startswith("undo of step 'book', parameter 'hotell': nothing provides it; the closest is 'hotel'. ")
    assert second.startswith("undo of step 'book', parameter 'error': nothing provides it; ")


def test_a_wrong_type_in_an_undo() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Booking(Reactor):
            @step
            async def book(self) -> int: ...

            @book.undo
            async def unbook(self, result: str, book: bytes) -> None: ...

    mend = "change the annotation, or map it with transform="
    assert caught.value.problems == (
        f"undo of step 'book', parameter 'result': expects str, but the value is int; {mend}",
        f"undo of step 'book', parameter 'book': expects bytes, but the value is int; {mend}",
    )


def test_a_generator_as_undo() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Booking(Reactor):
            @step
            async def book(self) -> int: ...

            @book.undo
            async def unbook(self) -> Any:
                yield 1

    (problem,) = caught.value.problems
    assert problem.startswith("undo of step 'book' is a generator function; ")


def test_two_undos_of_one_step() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Booking(Reactor):
            @step
            async def book(self) -> int: ...

            @book.undo
            async def one(self) -> None: ...

            @book.undo
            async def two(self) -> None: ...

            @book.compensate
            async def three(self) -> None: ...

            @book.compensate
            async def four(self) -> None: ...

    assert caught.value.problems == (
        "step 'book' has two undo functions; keep one",
        "step 'book' has two compensate functions; keep one",
    )


@pytest.mark.parametrize("slot", ["undo", "compensate"])
def test_a_function_that_hides_its_own_step(slot: str) -> None:
    with pytest.raises(DefinitionError) as caught:

        class Booking(Reactor):
            @step
            async def book(self) -> int: ...  # pyright: ignore[reportRedeclaration]

            @getattr(book, slot)  # type: ignore[no-redef]
            async def book(self) -> None: ...

    assert caught.value.problems == (
        f"the {slot} function 'book' hides its own step; give it another name, like {slot}_book",
    )


def test_a_function_that_hides_its_own_pinned_step() -> None:
    with pytest.raises(DefinitionError):

        class Booking(Reactor):
            @step(name="stored")
            async def book(self) -> int: ...  # pyright: ignore[reportRedeclaration]

            @book.undo  # type: ignore[no-redef]
            async def book(self) -> None: ...


def test_one_function_may_serve_several_steps_and_stays_a_method() -> None:
    class Booking(Reactor):
        @step
        async def one(self) -> int: ...

        @step
        async def two(self) -> int: ...

        @one.undo
        @two.undo
        async def unbook(self, result: int) -> None: ...

    for name in ("one", "two"):
        undo = Booking.plan[name].undo
        assert undo is not None
        assert undo.fn is Booking.unbook


def test_a_finished_step_takes_no_further_undo() -> None:
    class Booking(Reactor):
        @step
        async def book(self) -> int: ...

    async def unbook(self: Any) -> None: ...

    with pytest.raises(TypeError, match=r"Booking\.book is finished: a subclass changes a step by defining it again"):
        Booking.book.undo(unbook)


def test_a_dispatched_step_takes_no_undo_but_a_compensate() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Booking(Reactor):
            @async_step
            async def mail(self) -> int: ...

            @mail.undo
            async def unmail(self) -> None: ...

            @mail.compensate
            async def tidy(self, error: BaseException) -> None: ...

    assert caught.value.problems == (
        "async step 'mail': undo would never run, since a parent's rollback does not touch it; use compensate, or "
        "make it a @step",
    )


def test_a_dispatched_step_class_with_an_undo_is_noted() -> None:
    class Mail(Step[int]):
        async def run(self) -> int: ...

        async def undo(self, result: int) -> None: ...

        async def compensate(self, error: BaseException) -> None: ...

    with pytest.warns(UserWarning, match="its undo never runs when dispatched") as warned:

        class Booking(Reactor):
            mail = Mail.async_step()

    assert [warning.filename for warning in warned] == [__file__]
    (note,) = Booking.plan.notes
    assert note.startswith("step 'mail' (")
    assert note.endswith("Mail): its undo never runs when dispatched; a parent does not roll it back")
    assert Booking.plan["mail"].undo is None
    assert Booking.plan["mail"].compensate is not None


def test_a_step_classes_own_undo_and_compensate_are_bound() -> None:
    class Charge(Step[int]):
        amount: int

        async def run(self, ctx: Context) -> int: ...

        async def undo(self, result: int, ctx: Context) -> None: ...

        def compensate(self, error: BaseException) -> None: ...

    class Billing(Reactor):
        amount: int
        charge = Charge.step()

    node = Billing.plan["charge"]
    assert sources(node.body) == {"ctx": Source.CONTEXT}
    assert sources(node.undo) == {"result": Source.OWN_RESULT, "ctx": Source.CONTEXT}
    assert sources(node.compensate) == {"error": Source.ERROR}


@pytest.mark.parametrize("slot", ["undo", "compensate"])
def test_what_is_registered_on_the_use_of_a_step_class_counts_or_is_refused(slot: str) -> None:
    class Charge(Step[int]):
        async def run(self) -> int: ...

    try:

        class Billing(Reactor):
            charge = Charge.step()

            @getattr(charge, slot)  # type: ignore[untyped-decorator]
            async def cleanup(self) -> None: ...

    except DefinitionError:
        return
    assert getattr(Billing.plan["charge"], slot) is not None


def test_methods_of_a_step_class_get_values_only_from_its_fields() -> None:
    class Charge(Step[int]):
        amount: int

        async def run(self, amount: int) -> int: ...

        async def undo(self, amount: int) -> None: ...

    with pytest.raises(DefinitionError) as caught:

        class Billing(Reactor):
            amount: int
            charge = Charge.step()

    first, second = caught.value.problems
    assert first.startswith("step 'charge' (")
    assert "Charge).run, parameter 'amount': nothing provides it" in first
    assert second.startswith(
        "undo of step 'charge', parameter 'amount': nothing provides it; there are: result, charge"
    )


def test_an_elements_undo_and_compensate() -> None:
    class Charges(Reactor):
        orders: list[int]

        @map_each(over=from_input("orders"))
        async def charge(self, order: int) -> str: ...

        @charge.undo
        async def refund(self, result: str, order: int) -> None: ...

        @charge.compensate
        async def alert(self, error: BaseException, order: int) -> None: ...

    plan = Charges.plan["charge"].element
    assert plan is not None
    (element,) = plan.nodes
    assert sources(element.undo) == {"result": Source.OWN_RESULT, "order": Source.ITEM}
    assert sources(element.compensate) == {"error": Source.ERROR, "order": Source.ITEM}


def test_undo_all_and_collect_get_the_results() -> None:
    class Charges(Reactor):
        orders: list[int]
        who: str

        @map_each(over=from_input("orders"))
        async def charge(self, order: int) -> str: ...

        @charge.undo_all
        async def refund_all(self, results: Any, who: str) -> None: ...

        @charge.collect
        def count(self, results: Any) -> int: ...

    node = Charges.plan["charge"]
    assert sources(node.undo_all) == {"results": Source.OWN_RESULT, "who": Source.INPUT}
    assert sources(node.collect) == {"results": Source.OWN_RESULT}
    assert node.result_type is int


def test_mistakes_in_an_undo_are_reported_beside_a_cycle() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Both(Reactor):
            @step
            async def one(self, two: int) -> int: ...

            @step
            async def two(self, one: int) -> int: ...

            @one.undo
            async def unone(self, nothing: int) -> None: ...

    assert len(caught.value.problems) == 2


def test_names_that_there_are_are_listed_once() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Booking(Reactor):
            @step
            async def charge(self) -> int: ...

            @charge.undo
            async def refund(self, zzz: int) -> None: ...

    assert "there are: result, charge. " in caught.value.problems[0]
