"""The shape of a decoder; a family of models is a set of values of this record."""

from dataclasses import dataclass, field, fields
from typing import Literal

from ..errors import check
from .traits import Traits

# How a sampler stores its copy of the weights.
StoredWeights = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True)
class ModelConfig:
    """A decoder with grouped-query attention, RoPE, RMSNorm and a gated feed-forward layer.

    Raises:
      ConfigError: where a number is out of range or two of them don't fit each other.

    Example:
      >>> ModelConfig(num_heads=4, num_kv_heads=2).queries_per_kv_head
      2
    """

    num_layers: int = 2
    """layers, at least 1"""
    width: int = 64
    """width of the residual stream"""
    num_heads: int = 4
    """query heads, a multiple of num_kv_heads"""
    num_kv_heads: int = 4
    """key and value heads"""
    head_width: int = 16
    """width of one head, even"""
    ffn_width: int = 192
    """hidden width of the gated feed-forward layer"""
    rope_theta: float = 10_000.0
    """base of the rotary wavelengths, above 1"""
    norm_eps: float = 1e-6
    """added to the mean square in RMSNorm, above 0"""
    qk_norm: bool = False
    """normalise queries and keys per head before the rotation"""
    tied_embeddings: bool = True
    """use the input embedding as the output head"""
    traits: Traits = field(default_factory=Traits)
    """what a family adds to this"""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type is int:
                check(value >= 1, f"model.{one.name}", value, ">= 1")
        check(
            self.num_heads % self.num_kv_heads == 0,
            "model.num_heads",
            self.num_heads,
            f"a multiple of num_kv_heads ({self.num_kv_heads}), so that each of these serves "
            "a whole number of query heads",
        )
        check(
            self.head_width % 2 == 0,
            "model.head_width",
            self.head_width,
            "even, since the rotation works on pairs",
        )
        check(self.rope_theta > 1, "model.rope_theta", self.rope_theta, "> 1 and finite")
        check(self.norm_eps > 0, "model.norm_eps", self.norm_eps, "> 0 and finite")
        layers = self.traits.attention.windowed_layers
        check(
            max(layers, default=0) < self.num_layers,
            "model.traits.attention.windowed_layers",
            layers,
            f"below num_layers ({self.num_layers})",
        )

    @property
    def queries_per_kv_head(self) -> int:
        """How many query heads share one kv head."""
        return self.num_heads // self.num_kv_heads
