"""Secrets stay out of everything that is shown, wherever in a value they are marked."""

import dataclasses
from typing import Annotated, Any, NamedTuple

import pydantic
import pytest
from msgspec import Meta, Struct

from aioreactor import Failure, Reactor, Redact, Success, step
from aioreactor.redaction import REDACTED, Scrubber, display, display_fields, is_redacted, secrets_in, secrets_of_fields

SECRET = "tok-4111"


class Card(Struct):
    number: Annotated[str, Redact]
    holder: str = "ann"


@dataclasses.dataclass
class Plain:
    key: Annotated[str, Redact()]
    card: Card | None = None


class Model(pydantic.BaseModel):
    pin: Annotated[str, Redact]
    cards: list[Card] = []

    model_config = {"arbitrary_types_allowed": True}


class Open(Struct):
    card: Card
    others: dict[str, Plain]
    n: int = 1


class Several(Struct):
    tokens: Annotated[list[str], Redact]


class MaybeSecret(Struct):
    token: Annotated[str, Redact] | None = None


class ListOfSecrets(Struct):
    tokens: list[Annotated[str, Redact]]


class SecretPair(NamedTuple):
    user: str
    token: Annotated[str, Redact]


class HalfKnown(Struct):
    token: Annotated[str, Redact]
    other: "NotThere | None" = None  # type: ignore[name-defined]  # noqa: F821


def test_the_mark_is_the_class_or_an_instance_among_others() -> None:
    assert is_redacted(Annotated[str, Redact])
    assert is_redacted(Annotated[str, Meta(min_length=1), Redact()])
    assert not is_redacted(Annotated[str, "Redact"])
    assert not is_redacted(str)
    assert repr(Redact()) == "Redact"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Card(SECRET), {"number": REDACTED, "holder": "ann"}),
        (Plain(SECRET), {"key": REDACTED, "card": None}),
        (Plain(SECRET, Card(SECRET)), {"key": REDACTED, "card": {"number": REDACTED, "holder": "ann"}}),
        (Model(pin=SECRET), {"pin": REDACTED, "cards": []}),
        (
            Model(pin=SECRET, cards=[Card(SECRET, "bob")]),
            {"pin": REDACTED, "cards": [{"number": REDACTED, "holder": "bob"}]},
        ),
        (
            Open(Card(SECRET), {"a": Plain(SECRET)}),
            {"card": {"number": REDACTED, "holder": "ann"}, "others": {"a": {"key": REDACTED, "card": None}}, "n": 1},
        ),
        ([Card(SECRET)], [{"number": REDACTED, "holder": "ann"}]),
        ({"a": (1, Card(SECRET))}, {"a": [1, {"number": REDACTED, "holder": "ann"}]}),
        (Several([SECRET]), {"tokens": REDACTED}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_is_shown(value: Any, shown: Any) -> None:
    assert display(value) == shown


def test_what_has_no_secrets_is_shown_as_it_is() -> None:
    for value in (1, "x", None, [1, 2], {"a": {"b": 1}}, Meta(ge=1), object(), (1, "a")):
        assert display(value) is value


def test_fields_of_a_reactor_or_step() -> None:
    shown = display_fields({"card": SECRET, "n": 1, "deep": Card(SECRET)}, ["card"])
    assert shown == {"card": REDACTED, "n": 1, "deep": {"number": REDACTED, "holder": "ann"}}


def test_secrets_are_collected_from_every_depth_and_in_every_form() -> None:
    assert list(secrets_in(Open(Card("s1"), {"a": Plain("s2", Card("s3"))}))) == ["s1", "s2", "s3"]
    assert list(secrets_in([Several(["s1", "s2"])])) == ["s1", "s2"]
    assert list(secrets_in({"a": 1})) == []
    assert list(
        secrets_of_fields({"a": 1234, "b": b"bytes", "c": "x", "d": Card("s1"), "e": None}, ["a", "b", "e"])
    ) == [
        "1234",
        "bytes",
        "s1",
    ]


@pytest.mark.parametrize(
    ("secrets", "text", "scrubbed"),
    [
        ([], "nothing to do", "nothing to do"),
        (["", "  "], "nothing to do", "nothing to do"),
        ([SECRET], f"card {SECRET}!", f"card {REDACTED}!"),
        (["abcd", "abcdef"], "abcdef abcd", f"{REDACTED} {REDACTED}"),
        (["a.c*"], "abcc a.c*", f"abcc {REDACTED}"),
        (["12"], "12 123 12", f"{REDACTED} 123 {REDACTED}"),
        (["12"], "a12 12b -12-", f"a12 12b -{REDACTED}-"),
        (["1234"], "x1234x", f"x{REDACTED}x"),
    ],
)
def test_texts_are_scrubbed(secrets: list[str], text: str, scrubbed: str) -> None:
    assert Scrubber(secrets)(text) == scrubbed


def test_outcomes_hide_secrets_in_their_repr() -> None:
    assert repr(Success(Card(SECRET))) == f"Success(value={{'number': '{REDACTED}', 'holder': 'ann'}})"


class Pays(Reactor):
    card: Annotated[str, Redact]
    holder: Card

    @step
    async def charge(self, card: str, holder: Card) -> str:
        raise ValueError(f"declined: {card}, {holder.number}")


async def test_a_failure_shows_no_secret_anywhere() -> None:
    outcome = await Pays.run(card="secret-one", holder=Card("secret-two"))
    assert isinstance(outcome, Failure)
    everything = [
        repr(outcome),
        outcome.message,
        outcome.traceback,
        outcome.summary(),
        repr(outcome.to_dict()),
        repr(outcome.inputs),
        repr(outcome.arguments),
        repr(outcome.trace),
        str([entry.detail for entry in outcome.trace]),
    ]
    assert [text for text in everything if "secret-one" in text or "secret-two" in text] == []
    assert outcome.message == f"declined: {REDACTED}, {REDACTED}"
    assert str(outcome.error) == "declined: secret-one, secret-two"


async def test_the_message_of_a_faulty_secret_does_not_quote_it() -> None:
    class Checks(Reactor):
        pin: Annotated[int, Redact]

    outcome = await Checks.run(pin="secret-pin")
    assert isinstance(outcome, Failure)
    assert outcome.field_errors == {"pin": ["Expected `int`, got `str`"]}
    assert "secret-pin" not in repr(outcome.to_dict())


@pytest.mark.parametrize("value", [MaybeSecret(SECRET), ListOfSecrets([SECRET])], ids=["optional", "list"])
def test_marks_inside_an_annotation_count(value: Any) -> None:
    assert SECRET not in repr(display(value))


async def test_an_optional_secret_input_is_a_secret() -> None:
    class Optional(Reactor):
        card: Annotated[str, Redact] | None = None

        @step
        async def charge(self, card: str | None) -> str:
            raise ValueError(f"declined: {card}")

    outcome = await Optional.run(card=SECRET)
    assert isinstance(outcome, Failure)
    assert SECRET not in repr(outcome) + repr(outcome.inputs)


def test_marks_of_a_named_tuple_count() -> None:
    assert SECRET not in repr(display(SecretPair("ann", SECRET)))


def test_marks_count_beside_an_annotation_that_cannot_be_resolved() -> None:
    assert SECRET not in repr(display(HalfKnown(SECRET)))


def test_marks_count_at_any_depth() -> None:
    value: Any = Card(SECRET)
    for _ in range(12):
        value = [value]
    assert SECRET not in repr(display(value))


async def test_a_secret_with_line_breaks_or_quotes_is_hidden_in_a_repr() -> None:
    class Signs(Reactor):
        key: Annotated[str, Redact]

        @step
        async def sign(self, key: str) -> str:
            raise KeyError(key)

    outcome = await Signs.run(key="-----BEGIN KEY-----\nMIIEow'IBAAK\n-----END KEY-----")
    assert "MIIEow" not in repr(outcome)


def test_an_escaped_secret_is_collected_in_its_other_forms() -> None:
    assert list(secrets_of_fields({"a": "x\n'\u00e9"}, ["a"])) == ["x\n'\u00e9", "x\\n'\u00e9", "x\\n'\\u00e9"]


@pytest.mark.parametrize(
    ("secrets", "text", "scrubbed"),
    [
        (["1"], "Expected `int` >= 1 - at `$[1].n`", "Expected `int` >= 1 - at `$[1].n`"),
        (["12"], "12 at `$[12].n`, `$.n[12]`, [12]", f"{REDACTED} at `$[12].n`, `$.n[12]`, [{REDACTED}]"),
        (["abcd"], "$.abcd", f"$.{REDACTED}"),
    ],
)
def test_short_secrets_leave_the_paths_of_messages_alone(secrets: list[str], text: str, scrubbed: str) -> None:
    assert Scrubber(secrets)(text) == scrubbed


async def test_the_path_of_a_message_survives_an_unknown_input() -> None:
    class Checks(Reactor):
        items: list[Card]

    outcome = await Checks.run(items=[{"number": "n"}, {"number": 3}], itmes=1)
    assert isinstance(outcome, Failure)
    assert outcome.field_errors["items"] == ["Expected `str`, got `int` - at `$[1].number`"]


def test_what_is_deep_or_cyclic_and_has_no_secrets_is_shown_as_it_is() -> None:
    deep: Any = 1
    for _ in range(30):
        deep = [deep]
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    assert display(deep) is deep
    assert display(cyclic) is cyclic


def test_secrets_below_any_depth_and_in_cycles_are_collected_once() -> None:
    value: Any = [Card("s1")]
    for _ in range(30):
        value = [value]
    value.append(value)
    assert list(secrets_in(value)) == ["s1"]


def test_a_text_that_names_the_mark_counts() -> None:
    assert is_redacted("Annotated[NotThere, Redact]")
    assert is_redacted(dict[str, list[Annotated[str, Redact]]])
    assert not is_redacted("NotThere")
