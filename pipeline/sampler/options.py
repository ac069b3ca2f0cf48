"""What every row asks of its draws, as arrays: the same record on the host and on the device.

A row that asks for nothing has the neutral value in every field, which changes no bit.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import check
from ..sampling import Sampling

NO_TOKEN = -1  # pads the biased ids
ALL_ALLOWED = 0xFFFFFFFF  # 32 tokens of a mask
_BITS = 32
_LARGEST_TOP_K = 2**31 - 1


class DrawOptions(NamedTuple):
    """One entry a row. S rows, V tokens in the vocabulary, n biased ids.

    Attributes:
      temperature: f32[S]; 0 takes the most likely token.
      top_k: i32[S]; 0 is no limit.
      top_p: f32[S]; 1 is no limit.
      min_p: f32[S]; 0 is no limit.
      repetition_penalty: f32[S]; 1 is none.
      presence_penalty: f32[S]; 0 is none.
      frequency_penalty: f32[S]; 0 is none.
      top_logprobs: i32[S], how many most likely tokens the row wants to know.
      bias_ids: i32[S, n], distinct in a row, padded with `NO_TOKEN`.
      biases: f32[S, n].
      allowed: u32[S, ceil(V / 32)]: bit t % 32 of word t // 32 allows token t, and all bits
        are set where every token is allowed. None where no row can have a mask.
    """

    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    repetition_penalty: Any
    presence_penalty: Any
    frequency_penalty: Any
    top_logprobs: Any
    bias_ids: Any
    biases: Any
    allowed: Any


@dataclass(frozen=True)
class OptionSizes:
    """The fixed sizes of the options; a request can't ask for more.

    Attributes:
      max_logit_bias: biased ids per request.
      max_top_logprobs: most likely tokens returned per sampled one.
      token_masks: whether requests may allow tokens, by a list or by a constraint. A mask of
        V / 8 bytes a row goes to the device with the other numbers.
    """

    vocab_size: int
    max_logit_bias: int = 0
    max_top_logprobs: int = 0
    token_masks: bool = False


def check_fits(sampling: Sampling, sizes: OptionSizes) -> None:
    """Refuse a request that asks for more than the sampler was compiled for.

    Raises:
      ConfigError: with the number, the limit and the setting to raise.
    """
    limit, asked = sizes.max_logit_bias, len(sampling.logit_bias)
    hint = "raise --sampler.draws.max-logit-bias"
    check(asked <= limit, "sampling.logit_bias", asked, f"at most {limit} ids", hint=hint)
    limit, asked = sizes.max_top_logprobs, sampling.top_logprobs
    hint = "raise --sampler.draws.max-top-logprobs"
    check(asked <= limit, "sampling.top_logprobs", asked, f"<= {limit}", hint=hint)
    limit, largest = sizes.vocab_size, sampling.largest_id
    hint = "use ids of the model's vocabulary"
    check(largest < limit, "sampling's ids", largest, f"< {limit}", hint=hint)
    masked = sampling.allowed_tokens is not None or sampling.constraint is not None
    name, hint = "sampling.allowed_tokens and constraint", "set --sampler.draws.token-masks"
    check(sizes.token_masks or not masked, name, masked, "None", hint=hint)


def neutral_options(rows: int, sizes: OptionSizes) -> DrawOptions:
    """Make the options of rows that ask for nothing, in NumPy."""
    words = -(-sizes.vocab_size // _BITS)
    biased = (rows, sizes.max_logit_bias)
    return DrawOptions(
        temperature=np.ones(rows, np.float32),
        top_k=np.zeros(rows, np.int32),
        top_p=np.ones(rows, np.float32),
        min_p=np.zeros(rows, np.float32),
        repetition_penalty=np.ones(rows, np.float32),
        presence_penalty=np.zeros(rows, np.float32),
        frequency_penalty=np.zeros(rows, np.float32),
        top_logprobs=np.zeros(rows, np.int32),
        bias_ids=np.full(biased, NO_TOKEN, np.int32),
        biases=np.zeros(biased, np.float32),
        allowed=np.full((rows, words), ALL_ALLOWED, np.uint32) if sizes.token_masks else None,
    )


def write_options(
    options: DrawOptions, row: int, sampling: Sampling, *, temperature: float
) -> None:
    """Overwrite one row of NumPy options by a request's; the request fits (`check_fits`).

    A constraint isn't asked here: see `write_allowed`.
    """
    options.temperature[row] = temperature
    options.top_k[row] = min(sampling.top_k, _LARGEST_TOP_K)
    options.top_p[row] = sampling.top_p
    options.min_p[row] = sampling.min_p
    options.repetition_penalty[row] = sampling.repetition_penalty
    options.presence_penalty[row] = sampling.presence_penalty
    options.frequency_penalty[row] = sampling.frequency_penalty
    options.top_logprobs[row] = sampling.top_logprobs
    options.bias_ids[row] = NO_TOKEN
    for index, (token, bias) in enumerate(sampling.logit_bias):
        options.bias_ids[row, index], options.biases[row, index] = token, bias
    if options.allowed is not None:
        write_allowed(options, row, sampling.allowed_tokens)


def write_allowed(options: DrawOptions, row: int, allowed: Collection[int] | None) -> None:
    """Overwrite the mask of one row of NumPy options; None allows all tokens.

    Example:
      >>> options = neutral_options(2, OptionSizes(40, token_masks=True))
      >>> write_allowed(options, 1, {0, 4, 33})
      >>> options.allowed.tolist()
      [[4294967295, 4294967295], [17, 2]]
    """
    options.allowed[row] = ALL_ALLOWED if allowed is None else 0
    if allowed is not None:
        ids = np.fromiter(allowed, np.int64, len(allowed))
        bits = np.uint32(1) << (ids % _BITS).astype(np.uint32)
        np.bitwise_or.at(options.allowed[row], ids // _BITS, bits)
