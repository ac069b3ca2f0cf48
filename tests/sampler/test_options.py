"""A request's options in the arrays of the rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.sampler.options import (
    OptionSizes,
    check_fits,
    neutral_options,
    write_allowed,
    write_options,
)
from headrace.pipeline.sampling import PLAIN, Sampling

SIZES = OptionSizes(70, max_logit_bias=2, max_top_logprobs=3, token_masks=True)
EVERYTHING = Sampling(
    top_k=2**40,
    top_p=0.5,
    min_p=0.25,
    repetition_penalty=2.0,
    presence_penalty=-1.0,
    frequency_penalty=0.5,
    logit_bias=((69, 1.0), (3, -1.0)),
    allowed_tokens=(3, 69),
    top_logprobs=3,
)


def test_one_row_is_written_and_a_plain_request_writes_it_back() -> None:
    neutral, options = neutral_options(3, SIZES), neutral_options(3, SIZES)
    write_options(options, 1, EVERYTHING, temperature=0.5)
    for name, before, after in zip(options._fields, neutral, options, strict=True):
        np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
        assert (after[1] != before[1]).any(), name
        assert after.dtype == before.dtype
    write_options(options, 1, PLAIN, temperature=1.0)
    for name, before, after in zip(options._fields, neutral, options, strict=True):
        if name != "biases":  # of no id
            np.testing.assert_array_equal(after, before)


@given(st.sets(st.integers(0, 69)))
def test_a_mask_has_the_bits_of_the_allowed_tokens(allowed: set[int]) -> None:
    options = neutral_options(2, SIZES)
    write_allowed(options, 1, allowed)
    bits = np.unpackbits(options.allowed[1].astype("<u4").view(np.uint8), bitorder="little")
    assert set(np.flatnonzero(bits).tolist()) == allowed
    assert (options.allowed[0] == 2**32 - 1).all()


def test_without_masks_there_is_no_array() -> None:
    sizes = OptionSizes(70)
    options = neutral_options(2, sizes)
    assert options.allowed is None
    write_options(options, 0, Sampling(top_k=3), temperature=1.0)
    assert options.top_k.tolist() == [3, 0]


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        ({"logit_bias": ((1, 1.0), (2, 1.0), (3, 1.0))}, "max-logit-bias"),
        ({"top_logprobs": 4}, "max-top-logprobs"),
        ({"logit_bias": ((70, 1.0),)}, "vocabulary"),
        ({"allowed_tokens": (1, 70)}, "vocabulary"),
    ],
)
def test_more_than_was_compiled_for_is_refused(asked: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        check_fits(Sampling(**asked), SIZES)


@pytest.mark.parametrize("asked", [{"allowed_tokens": (1,)}, {"constraint": list}])
def test_masks_need_a_sampler_with_masks(asked: dict[str, Any]) -> None:
    check_fits(Sampling(**asked), SIZES)
    with pytest.raises(ConfigError, match="token-masks"):
        check_fits(Sampling(**asked), OptionSizes(70))


def test_everything_fits_where_it_was_compiled_for() -> None:
    check_fits(EVERYTHING, SIZES)
    check_fits(PLAIN, OptionSizes(1))
