"""What a request may ask of the draw of its tokens, beyond the temperature.

All of it is data of one request: nothing here ever compiles a program or changes a neighbour.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import check

Constraint = Callable[[NDArray[np.int32]], Collection[int]]

LARGEST_PENALTY = 100.0
LARGEST_BIAS = 1e4  # beyond it, float32 would round the logits themselves


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. The default changes nothing: the temperature's softmax, whole.

    What is asked is applied in this order: penalties, bias, allowed ids; then the temperature;
    then `top_k`, `top_p` and `min_p`, each of what the one before left.

    Attributes:
      top_k: only so many of the most likely tokens can be drawn; 0 is no limit. Among equals
        the lower id comes first, here and for `top_p`.
      top_p: only the fewest most likely tokens whose mass reaches this share, at least one.
      min_p: only tokens at least this times as likely as the most likely one.
      repetition_penalty: divides positive and multiplies negative logits of the tokens in the
        prompt and of the sampled ones. 1 is none.
      presence_penalty: subtracted from the logits of tokens that were sampled in this request.
      frequency_penalty: subtracted for each time a token was sampled in this request.
      logit_bias: pairs of id and what is added to its logit.
      allowed_tokens: only these ids can be drawn; None allows all.
      top_logprobs: how many most likely tokens to return with each sampled one.
      stop_strings: a turn ends when one of these appears in the text sampled so far.
      constraint: a function from the tokens sampled so far to the ids allowed next (at least
        one). A row with a constraint decodes one token a dispatch. It is called on the device
        thread, between dispatches: all rows wait for it, so it should be quick.

    Raises:
      ConfigError: where a number is out of its range, an id appears twice or nothing is allowed.

    Example:
      >>> Sampling(top_p=1.5)
      Traceback (most recent call last):
        ...
      headrace.pipeline.errors.ConfigError: sampling.top_p must be > 0 and <= 1, got 1.5; \
1 keeps every token
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_tokens: tuple[int, ...] | None = None
    top_logprobs: int = 0
    stop_strings: tuple[str, ...] = ()
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        self._check_cuts()
        self._check_penalties()
        self._check_ids()
        _check(self.top_logprobs >= 0, "top_logprobs", self.top_logprobs, ">= 0; 0 returns none")
        condition = "strings that aren't empty; leave the empty one out"
        _check(all(self.stop_strings), "stop_strings", self.stop_strings, condition)

    def _check_cuts(self) -> None:
        _check(self.top_k >= 0, "top_k", self.top_k, ">= 0; 0 keeps every token")
        share = "> 0 and <= 1; 1 keeps every token"
        _check(0 < self.top_p <= 1, "top_p", self.top_p, share)
        share = ">= 0 and <= 1; 0 keeps every token"
        _check(0 <= self.min_p <= 1, "min_p", self.min_p, share)

    def _check_penalties(self) -> None:
        penalty, lowest = self.repetition_penalty, 1 / LARGEST_PENALTY
        condition = f">= {lowest} and <= {LARGEST_PENALTY}; 1 is no penalty"
        _check(lowest <= penalty <= LARGEST_PENALTY, "repetition_penalty", penalty, condition)
        condition = f"within +-{LARGEST_PENALTY}; 0 is no penalty"
        for name, penalty in (
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            _check(abs(penalty) <= LARGEST_PENALTY, name, penalty, condition)

    def _check_ids(self) -> None:
        biased = [token for token, _ in self.logit_bias]
        fits = len(set(biased)) == len(biased) and min(biased, default=0) >= 0
        condition = "pairs of distinct ids >= 0 and a bias; add up the biases of one id"
        _check(fits, "logit_bias", self.logit_bias, condition)
        condition = f"within +-{LARGEST_BIAS:g}; exclude tokens by allowed_tokens"
        for _, bias in self.logit_bias:
            _check(abs(bias) <= LARGEST_BIAS, "logit_bias", bias, condition)
        if self.allowed_tokens is not None:
            fits = min(self.allowed_tokens, default=-1) >= 0
            condition = "at least one id, all >= 0; None allows all"
            _check(fits, "allowed_tokens", self.allowed_tokens, condition)

    @property
    def largest_id(self) -> int:
        """The largest token id that it names, -1 where it names none."""
        biased = max((token for token, _ in self.logit_bias), default=-1)
        return max(biased, max(self.allowed_tokens or (), default=-1))


def _check(allowed: bool, name: str, value: object, condition_and_hint: str) -> None:
    condition, _, hint = condition_and_hint.partition("; ")
    check(allowed, f"sampling.{name}", value, condition, hint=hint)


PLAIN = Sampling()  # the temperature's softmax and nothing else
