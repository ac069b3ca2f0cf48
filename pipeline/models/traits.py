"""What sets families of decoders apart. Every default is a decoder without that trait.

A trait that is off costs nothing: the compiled program is the one of a model that never had it.
"""

from dataclasses import dataclass, field
from typing import Literal

from ..errors import check

RopeScaling = Literal["none", "linear", "llama3", "yarn"]
Activation = Literal["silu", "gelu_tanh", "gelu"]


@dataclass(frozen=True)
class RopeTraits:
    """How rotary wavelengths are changed for contexts longer than the pretraining's.

    Raises:
      ConfigError: where a number is out of range.
    """

    scaling: RopeScaling = "none"
    """linear: all wavelengths grow by `factor`; llama3, yarn: the long ones do, the short ones
    stay"""
    factor: float = 1.0
    """at least 1"""
    low_frequency_factor: float = 1.0
    """llama3, yarn: wavelengths above original_tokens / this grow by the whole factor"""
    high_frequency_factor: float = 4.0
    """llama3, yarn: wavelengths below original_tokens / this stay; above low_frequency_factor"""
    original_tokens: int = 8192
    """llama3, yarn: the context of the pretraining"""
    amplitude: float = 1.0
    """yarn: rotated queries and keys are multiplied by this, above 0"""
    whole_dimensions: bool = True
    """yarn: what grows and what stays ends at whole dimensions of a head"""
    windowed_theta: float | None = None
    """base of the wavelengths in layers with a window, which are never scaled; None: as others"""

    def __post_init__(self) -> None:
        at = "model.traits.rope."
        low, high = self.low_frequency_factor, self.high_frequency_factor
        check(self.factor >= 1, f"{at}factor", self.factor, ">= 1")
        check(low > 0, f"{at}low_frequency_factor", low, "> 0")
        check(high > low, f"{at}high_frequency_factor", high, f"> low_frequency_factor ({low})")
        check(self.original_tokens >= 1, f"{at}original_tokens", self.original_tokens, ">= 1")
        check(self.amplitude > 0, f"{at}amplitude", self.amplitude, "> 0")
        theta = self.windowed_theta
        check(theta is None or theta > 1, f"{at}windowed_theta", theta, "> 1 and finite")


@dataclass(frozen=True)
class AttentionTraits:
    """How attention is computed, and how far it looks.

    Raises:
      ConfigError: where a number is out of range, or a window and its layers don't go together.
    """

    qkv_bias: bool = False
    """queries, keys and values have biases"""
    output_bias: bool = False
    """attention's output has a bias"""
    score_width: float | None = None
    """scores are divided by its square root; None takes head_width"""
    score_cap: float | None = None
    """scores become cap * tanh(score / cap); None leaves them"""
    window: int | None = None
    """how many positions a query of a windowed layer sees, its own included"""
    windowed_layers: tuple[int, ...] = ()
    """the layers with a window, counted from 0; the others see everything before them"""

    def __post_init__(self) -> None:
        at = "model.traits.attention."
        for name in ("score_width", "score_cap", "window"):
            value = getattr(self, name)
            check(value is None or value > 0, f"{at}{name}", value, "> 0, or not set")
        layers = self.windowed_layers
        ascending = layers == tuple(sorted(set(layers))) and min(layers, default=0) >= 0
        check(ascending, f"{at}windowed_layers", layers, "ascending, from 0 on")
        fits = (self.window is None) == (not layers)
        check(fits, f"{at}window", self.window, "set if and only if windowed_layers has some")


@dataclass(frozen=True)
class ExpertTraits:
    """A mixture of experts in place of the feed-forward layer; `ffn_width` is each expert's.

    Raises:
      ConfigError: where a token would have no expert, or more than there are.
    """

    count: int = 0
    """experts; 0 is one dense layer"""
    per_token: int = 0
    """how many experts a token goes to"""
    normalize: bool = True
    """a token's weights of its experts are scaled to a sum of 1"""

    def __post_init__(self) -> None:
        at, count = "model.traits.experts.", self.count
        check(count >= 0, f"{at}count", count, ">= 0")
        fits = min(1, count) <= self.per_token <= count
        check(fits, f"{at}per_token", self.per_token, f"in {min(1, count)}..{count}, the experts")


@dataclass(frozen=True)
class Traits:
    """What a family adds to the plain decoder.

    Raises:
      ConfigError: where traits exclude each other.
    """

    attention: AttentionTraits = field(default_factory=AttentionTraits)
    """biases, caps, windows"""
    rope: RopeTraits = field(default_factory=RopeTraits)
    """scaled wavelengths"""
    experts: ExpertTraits = field(default_factory=ExpertTraits)
    """a mixture of experts"""
    ffn_bias: bool = False
    """the feed-forward layer's matrices have biases; not with experts"""
    activation: Activation = "silu"
    """of the feed-forward layer's gate"""
    norms_add_one: bool = False
    """norms multiply by 1 + their weight, in place of the weight"""
    post_norms: bool = False
    """what attention and the feed-forward layer add is normalised first"""
    embedding_scale: float = 1.0
    """factor of the embedding, above 0"""
    logit_cap: float | None = None
    """logits become cap * tanh(logit / cap); None leaves them"""

    def __post_init__(self) -> None:
        at = "model.traits."
        scale, cap = self.embedding_scale, self.logit_cap
        check(scale > 0, f"{at}embedding_scale", scale, "> 0")
        check(cap is None or cap > 0, f"{at}logit_cap", cap, "> 0, or not set")
        fits = not (self.ffn_bias and self.experts.count)
        check(fits, f"{at}ffn_bias", self.ffn_bias, "false where the model has experts")
