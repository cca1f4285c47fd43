"""`Retry`: how long to wait, and what is tried again."""

import asyncio
import dataclasses
import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioreactor import (
    ArgumentError,
    DeadlineExceeded,
    InputValidationError,
    LockUnavailable,
    OutputValidationError,
    RateLimited,
    Retry,
    StepCancelled,
    StepTimeout,
)


@pytest.mark.parametrize(
    ("retry", "waits"),
    [
        (Retry(backoff="fixed", base_delay=2), [2, 2, 2, 2]),
        (Retry(backoff="linear", base_delay=2), [2, 4, 6, 8]),
        (Retry(backoff="exponential", base_delay=2), [2, 4, 8, 16]),
        (Retry(), [1, 2, 4, 8]),
        (Retry(backoff="exponential", base_delay=1, max_delay=3), [1, 2, 3, 3]),
        (Retry(backoff="linear", base_delay=2, max_delay=5), [2, 4, 5, 5]),
        (Retry(backoff="fixed", base_delay=9, max_delay=1), [1, 1, 1, 1]),
        (Retry(base_delay=0), [0, 0, 0, 0]),
        (Retry(max_delay=0), [0, 0, 0, 0]),
    ],
    ids=repr,
)
def test_the_wait_after_each_attempt(retry: Retry, waits: list[float]) -> None:
    assert [retry.delay(attempt) for attempt in (1, 2, 3, 4)] == waits


def test_many_attempts_do_not_overflow() -> None:
    assert Retry(max_delay=60).delay(100_000) == 60


@given(
    st.sampled_from(["fixed", "linear", "exponential"]),
    st.floats(0, 1),
    st.floats(0, 100),
    st.none() | st.floats(0, 100),
    st.integers(1, 40),
    st.integers(0, 1000),
)
def test_jitter_is_a_share_of_the_wait_and_never_passes_the_cap(
    backoff: Any, jitter: float, base: float, cap: float | None, attempt: int, seed: int
) -> None:
    plain = Retry(backoff=backoff, base_delay=base, max_delay=cap).delay(attempt)
    found = Retry(backoff=backoff, base_delay=base, max_delay=cap, jitter=jitter).delay(attempt, random.Random(seed))
    assert plain * (1 - jitter) * (1 - 1e-9) <= found <= plain * (1 + jitter) * (1 + 1e-9)
    assert cap is None or found <= cap


def test_jitter_can_be_repeated_with_a_seed() -> None:
    retry = Retry(jitter=0.5)
    first = [retry.delay(n, random.Random(7)) for n in (1, 2)]
    assert first == [retry.delay(n, random.Random(7)) for n in (1, 2)]
    assert retry.delay(1, random.Random(7)) != retry.delay(1, random.Random(8))


class Final(Exception):
    retryable = False


class FinalGroup(ExceptionGroup[Exception]):
    retryable = False


class Own(BaseException): ...


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("several", errors)


@pytest.mark.parametrize(
    ("retry", "error", "allowed"),
    [
        (Retry(), ValueError(), True),
        (Retry(), Own(), False),
        (Retry(), asyncio.CancelledError(), False),
        (Retry(), KeyboardInterrupt(), False),
        (Retry(retry_on=(Own,)), Own(), True),
        (Retry(retry_on=OSError), ValueError(), False),
        (Retry(retry_on=OSError), ConnectionError(), True),
        (Retry(retry_on=(OSError, KeyError)), KeyError(), True),
        (Retry(retry_on=()), ValueError(), False),
        (Retry(give_up_on=OSError), ConnectionError(), False),
        (Retry(give_up_on=(OSError,)), ValueError(), True),
        (Retry(retry_on=OSError, give_up_on=ConnectionError), ConnectionError(), False),
        (Retry(), Final(), False),
        (Retry(), group(ValueError(), KeyError()), True),
        (Retry(retry_on=ValueError), group(ValueError(), KeyError()), False),
        (Retry(retry_on=ValueError), group(ValueError(), group(ValueError(), ValueError())), True),
        (Retry(retry_on=ValueError), group(ValueError(), group(ValueError(), KeyError())), False),
        (Retry(give_up_on=KeyError), group(ValueError(), group(KeyError())), False),
        (Retry(), group(ValueError(), Final()), False),
        (Retry(), FinalGroup("several", [ValueError()]), False),
        (Retry(), group(ValueError(), Own()), False),
        (Retry(), StepTimeout("a", 1), True),
        (Retry(give_up_on=StepTimeout), StepTimeout("a", 1), False),
        (Retry(), LockUnavailable("k", "held"), True),
        (Retry(), RateLimited("k", retry_after=1, window="second", limit=1), True),
        (Retry(), InputValidationError("a", {"x": ["bad"]}), False),
        (Retry(), OutputValidationError("a", "bad"), False),
        (Retry(), ArgumentError("a", "x", "bad"), False),
        (Retry(), DeadlineExceeded("a", 1), False),
        (Retry(), StepCancelled("a", "b"), False),
    ],
)
def test_what_is_tried_again(retry: Retry, error: BaseException, allowed: bool) -> None:
    assert retry.allows(error) is allowed


def test_an_error_that_says_that_it_may_be_retried_is_still_filtered() -> None:
    error = KeyError("x")
    error.retryable = True  # type: ignore[attr-defined]
    assert Retry(retry_on=ValueError).allows(error) is False


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_attempts": 0}, "max_attempts counts the first attempt, so it is at least 1, not 0"),
        ({"backoff": "cubic"}, "backoff is 'fixed', 'linear' or 'exponential', not 'cubic'"),
        ({"base_delay": -1}, "base_delay and max_delay are seconds and cannot be negative"),
        ({"max_delay": -0.1}, "base_delay and max_delay are seconds and cannot be negative"),
        ({"jitter": 1.1}, "jitter is a share of the wait, from 0 to 1, not 1.1"),
        ({"jitter": -0.1}, "jitter is a share of the wait, from 0 to 1, not -0.1"),
        ({"on_exhausted": "stop"}, "on_exhausted is 'fail' or 'pause', not 'stop'"),
    ],
)
def test_numbers_that_make_no_sense(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        Retry(**given)
    assert str(caught.value) == text


def test_it_is_a_frozen_value() -> None:
    retry = Retry(3, retry_on=(OSError,))
    assert retry == Retry(max_attempts=3, retry_on=(OSError,))
    assert hash(retry) == hash(Retry(3, retry_on=(OSError,)))
    assert pickle.loads(pickle.dumps(retry)) == retry
    assert pickle.loads(pickle.dumps(retry)).allows(ValueError()) is False
    assert dataclasses.replace(retry, retry_on=KeyError).allows(OSError()) is False
    with pytest.raises(dataclasses.FrozenInstanceError):
        retry.max_attempts = 4  # type: ignore[misc]
