"""Settings of the simulated hardware: which chips, how many, and what model runs on them.

Only numbers that decide costs; `costs` makes seconds of them.
"""

from dataclasses import dataclass, field

from ..errors import check
from .chips import ChipName


@dataclass(frozen=True)
class EfficiencyConfig:
    """What programs get of the peaks. Assumptions, not measurements: replace them by your own.

    Raises:
      ConfigError: for impossible numbers.
    """

    prefill_flops: float = 0.5
    """Share of the peak FLOP/s in prefill."""
    decode_flops: float = 0.5
    """Share of the peak FLOP/s that the matrix products of a decode step can reach."""
    learner_flops: float = 0.4
    """Share of the peak FLOP/s in training (model FLOP utilisation)."""
    memory: float = 0.7
    """Share of the memory bandwidth when weights and cache are read."""
    interconnect: float = 0.5
    """Share of the interconnect in a publish; some 0.01 between slices or nodes."""
    usable_memory: float = 0.9
    """Share of the memory for weights and cache; programs and buffers need the rest."""
    step_overhead_seconds: float = 0.0005
    """What a decode step costs whatever it does: launch, collectives, the host."""
    learner_flops_per_parameter: float = 8.0
    """FLOP per token and parameter: 6, or 8 where the forward pass is done twice."""

    def __post_init__(self) -> None:
        shares = (
            "prefill_flops", "decode_flops", "learner_flops", "memory", "interconnect",
            "usable_memory",
        )  # fmt: skip
        for name in shares:
            value = getattr(self, name)
            check(0 < value <= 1, f"sim.hardware.efficiency.{name}", value, "> 0 and <= 1")
        overhead, flops = self.step_overhead_seconds, self.learner_flops_per_parameter
        where = "sim.hardware.efficiency"
        check(overhead >= 0, f"{where}.step_overhead_seconds", overhead, ">= 0")
        check(flops > 0, f"{where}.learner_flops_per_parameter", flops, "> 0")


@dataclass(frozen=True)
class HardwareConfig:
    """The accelerators of a run, and the model on them (by default of the shape of an 8B one).

    Raises:
      ConfigError: for impossible numbers.
    """

    chip: ChipName | None = None
    """The accelerator; None takes the scenario's costs as they are."""
    sampler_chips: int = 8
    """Chips that sample."""
    learner_chips: int = 8
    """Chips that learn."""
    replica_chips: int | None = None
    """Chips that hold one copy of the sampler's weights; None: as few as leave half free."""
    parameters: float = 8e9
    """Parameters that take part in computing one token."""
    layers: int = 36
    """Layers (L)."""
    kv_heads: int = 8
    """Key and value heads of a layer (K)."""
    head_width: int = 128
    """Width of one head (h)."""
    parameter_bytes: float = 2.0
    """Bytes of one parameter in the sampler; 2 for bf16."""
    kv_bytes: float = 2.0
    """Bytes of one number in the cache; 2 for bf16."""
    efficiency: EfficiencyConfig = field(default_factory=EfficiencyConfig)

    def __post_init__(self) -> None:
        for name in ("sampler_chips", "learner_chips", "layers", "kv_heads", "head_width"):
            value = getattr(self, name)
            check(value >= 1, f"sim.hardware.{name}", value, ">= 1")
        for name in ("parameters", "parameter_bytes", "kv_bytes"):
            value = getattr(self, name)
            check(value > 0, f"sim.hardware.{name}", value, "> 0 and finite")
        replica, total = self.replica_chips, self.sampler_chips
        allowed = replica is None or (replica >= 1 and total % replica == 0)
        why = f"a divisor of sim.hardware.sampler_chips ({total})"
        check(allowed, "sim.hardware.replica_chips", replica, why)
