"""Annotations as texts (``from __future__ import annotations``): names are looked up at once, or on first use."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pytest
from msgspec import Meta, Struct

from aioreactor import Context, DefinitionError, Reactor, Redact, Resource, Step, compose, result, step
from aioreactor.plan.model import Source

if TYPE_CHECKING:
    from nowhere import Imaginary  # type: ignore[import-not-found]


class Known(Struct):
    n: int


class Module(Reactor[int]):
    item: Known
    card: Annotated[str, Redact]
    amount: Annotated[int, Meta(ge=1)] = 1
    limit: ClassVar[int] = 3

    @step
    async def load(self, item: Known, ctx: Context, db: Annotated[dict[str, int], Resource]) -> int: ...

    returns = load


class Late(Reactor):
    item: DefinedLater

    @step
    async def load(self, item: DefinedLater) -> DefinedLater:
        return item

    @step
    async def use(self, load: DefinedLater) -> None: ...


class LateAndWrong(Reactor):
    @step
    async def load(self) -> DefinedLater: ...

    @step
    async def use(self, load: DefinedLater, again: str = result(load)) -> None: ...  # type: ignore[assignment]


class LateStep(Step[int]):
    item: DefinedLater
    number: int

    async def run(self) -> int:
        return self.number


class LateUse(Reactor):
    item: DefinedLater
    number: int
    used = LateStep.step()


class LateParent(Reactor):
    number: int
    child = compose(LateUse, item=None)


LATE_AT_FIRST = {cls.__name__: cls.plan.unresolved for cls in (Late, LateAndWrong, LateUse, LateParent)}


class DefinedLater(Struct):
    n: int


def test_names_of_the_module_are_looked_up_at_once() -> None:
    fields = Module.plan.fields
    assert [(field.name, field.annotation) for field in fields.inputs] == [
        ("item", Known),
        ("card", Annotated[str, Redact]),
        ("amount", Annotated[int, Meta(ge=1)]),
    ]
    assert fields.hidden == {"card"}
    assert [arg.source for arg in Module.plan["load"].args] == [Source.INPUT, Source.CONTEXT, Source.RESOURCE]
    assert Module.plan.unresolved == ()


def test_what_is_not_known_yet_is_left_open() -> None:
    assert LATE_AT_FIRST == {
        "Late": (
            "input 'item': annotation 'DefinedLater'",
            "step 'load', parameter 'item': annotation 'DefinedLater'",
            "step 'use', parameter 'load': annotation 'DefinedLater'",
        ),
        "LateAndWrong": ("step 'use', parameter 'load': annotation 'DefinedLater'",),
        "LateUse": (
            "input 'item': annotation 'DefinedLater'",
            "step 'used' (LateStep), field 'item': annotation 'DefinedLater'",
        ),
        "LateParent": (
            "compose 'child': input 'item': annotation 'DefinedLater'",
            "compose 'child': step 'used' (LateStep), field 'item': annotation 'DefinedLater'",
        ),
    }


async def test_it_is_looked_up_on_first_use() -> None:
    Late.plan.check()
    assert Late.plan.unresolved == ()
    assert Late.plan["load"].result_type is DefinedLater
    assert (await Late.run(item={"n": 3})).results["load"] == DefinedLater(3)


def test_mistakes_come_to_light_then() -> None:
    for _ in range(2):
        with pytest.raises(DefinitionError) as caught:
            LateAndWrong.plan.check()
        assert caught.value.problems == (
            "step 'use', parameter 'again': expects str, but the result of 'load' is DefinedLater; change the "
            "annotation, or map it with transform=",
        )


async def test_a_run_finds_the_same_mistakes_before_anything_has_run() -> None:
    with pytest.raises(DefinitionError) as caught:
        await LateAndWrong.run()
    assert len(caught.value.problems) == 1


async def test_fields_of_step_classes_are_looked_up_on_first_use() -> None:
    LateUse.plan.check()
    assert (await LateUse.run(item={"n": 3}, number=4)).results == {"used": 4}


def test_what_is_never_known_is_reported_by_check() -> None:
    class Never(Reactor):
        item: Imaginary

        @step
        async def load(self, item: Imaginary, other: int = 3) -> Imaginary: ...

    with pytest.raises(DefinitionError) as caught:
        Never.plan.check()
    fix = "cannot be resolved; import or define the name before the first run"
    assert caught.value.problems == (
        f"input 'item': annotation 'Imaginary' {fix}",
        f"step 'load', parameter 'item': annotation 'Imaginary' {fix}",
    )


async def test_what_is_never_known_is_refused_by_a_run() -> None:
    class Never(Reactor):
        @step
        async def load(self, item: Imaginary = 3) -> int: ...

    with pytest.raises(DefinitionError) as caught:
        await Never.run()
    assert len(caught.value.problems) == 1


def test_classes_of_the_defining_function_are_known() -> None:
    class Local(Struct):
        n: int

    class LocalStep(Step[Local]):
        item: Local

        async def run(self) -> Local: ...

    class Uses(Reactor[Local]):
        item: Local
        first = LocalStep.step()

        @step
        async def load(self, item: Local, first: Local) -> Local: ...

        @load.undo
        async def unload(self, load: Local, item: Local) -> None: ...

        returns = load

    assert Uses.plan.unresolved == ()
    assert Uses.plan["load"].result_type is Local
    assert Uses.plan["first"].result_type is Local


def test_a_subclass_elsewhere_keeps_what_its_base_knew() -> None:
    def make_base() -> type[Reactor[Any]]:
        class Local(Struct):
            n: int

        class Base(Reactor):
            item: Local

            @step
            async def load(self, item: Local) -> Local: ...

        return Base

    class Derived(make_base()):  # type: ignore[misc]
        @step
        async def use(self, load: Any) -> None: ...

    assert Derived.plan.unresolved == ()
    assert Derived.plan["load"].result_type.__name__ == "Local"


def test_a_wrong_type_is_found_at_once_when_both_are_known() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            @step
            async def load(self) -> Known: ...

            @step
            async def use(self, load: str) -> None: ...

    assert len(caught.value.problems) == 1


def test_a_class_nested_in_the_reactor_is_known() -> None:
    class Holder(Reactor):
        class Item(Struct):
            n: int

        item: Item

    Holder.plan.check()
    assert Holder.plan.fields.by_name["item"].annotation is Holder.Item


def test_a_class_of_a_class_body_around_the_reactor_is_known() -> None:
    class Outer:
        class Item(Struct):
            n: int

        class Inner(Reactor):
            item: Item  # type: ignore[name-defined]  # noqa: F821

    assert Outer.Inner.plan.unresolved == ()


def test_a_reactor_may_name_itself() -> None:
    class Own(Reactor):
        @step
        async def load(self) -> Own: ...

        @step
        async def use(self, load: Own) -> None: ...

    Own.plan.check()


def test_a_context_that_cannot_be_looked_up_is_still_a_context() -> None:
    namespace: dict[str, Any] = {"__name__": "made_for_this_test"}
    source = (
        "from __future__ import annotations\n"
        "from aioreactor import Reactor, step\n"
        "class R(Reactor):\n"
        "    @step\n"
        "    async def load(self, c: aio.Context) -> int: ...\n"
    )
    exec(compile(source, "<made>", "exec"), namespace)
    (arg,) = namespace["R"].plan["load"].args
    assert arg.source is Source.CONTEXT
    assert namespace["R"].plan.unresolved == ("step 'load', parameter 'c': annotation 'aio.Context'",)


@dataclasses.dataclass
class Plain:
    n: int


def test_paths_into_classes_with_text_annotations() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Wrong(Reactor):
            plain: Plain

            @step
            async def load(self) -> Known: ...

            @step
            async def use(self, a: str = result(load, "n"), b: int = result(load, "m")) -> None: ...

    assert caught.value.problems == (
        "step 'use', parameter 'a': expects str, but the result of 'load' is int; change the annotation, or map it "
        "with transform=",
        "step 'use', parameter 'b': Known has no 'm'; it has: n",
    )
