"""The shape of a decoder; a family of models is a set of values of this record."""

from dataclasses import dataclass, fields

from ..errors import ConfigError


@dataclass(frozen=True)
class ModelConfig:
    """A decoder with grouped-query attention, RoPE, RMSNorm and SwiGLU.

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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and value < 1:
                raise ConfigError(f"model.{field.name} must be >= 1, got {value}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"model.num_heads must be a multiple of num_kv_heads ({self.num_kv_heads}), "
                f"got {self.num_heads}; each kv head serves a whole number of query heads"
            )
        if self.head_width % 2:
            raise ConfigError(
                f"model.head_width must be even for the rotation, got {self.head_width}"
            )
        if self.rope_theta <= 1:
            raise ConfigError(f"model.rope_theta must be > 1, got {self.rope_theta}; try 10000")
        if self.norm_eps <= 0:
            raise ConfigError(f"model.norm_eps must be > 0, got {self.norm_eps}; try 1e-6")

    @property
    def queries_per_kv_head(self) -> int:
        """How many query heads share one kv head."""
        return self.num_heads // self.num_kv_heads
