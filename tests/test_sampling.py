"""What a request may ask for: every wrong number is refused by name, value and range."""

import math
from typing import Any

import pytest

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.sampling import LARGEST_BIAS, PLAIN, Sampling


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e9},
        {"presence_penalty": 101.0},
        {"frequency_penalty": -101.0},
        {"logit_bias": ((3, 1.0), (3, 2.0))},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((1, 2 * LARGEST_BIAS),)},
        {"allowed_tokens": ()},
        {"allowed_tokens": (4, -2)},
        {"top_logprobs": -3},
        {"stop_strings": ("</s>", "")},
    ],
)
def test_a_wrong_number_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"sampling.{next(iter(wrong))} must be"):
        Sampling(**wrong)


@pytest.mark.parametrize("name", ["top_p", "min_p", "repetition_penalty", "presence_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_number_may_be_infinite(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Sampling(**{name: value})


@pytest.mark.parametrize("bias", [math.nan, -math.inf])
def test_no_bias_may_be_infinite(bias: float) -> None:
    with pytest.raises(ConfigError, match="logit_bias"):
        Sampling(logit_bias=((1, bias),))


def test_the_largest_id_is_the_largest_named() -> None:
    assert PLAIN.largest_id == -1
    assert Sampling(logit_bias=((7, -1.0), (2, 1.0))).largest_id == 7
    assert Sampling(logit_bias=((7, -1.0),), allowed_tokens=(9, 1)).largest_id == 9
