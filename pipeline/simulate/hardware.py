"""Accelerators, and the settings of the simulated hardware: which, how many, what model on them.

Only numbers that decide costs; `costs` makes seconds of them. Invariant: every number of a chip is
a peak, dense and without sparsity; what programs get of it is an `EfficiencyConfig`. `source`
names where the numbers were read: for GPUs in pages that quote the maker, not in the maker's own.
"""

from dataclasses import dataclass, field
from typing import Literal

from ..errors import check

ChipName = Literal[
    "v4", "v5e", "v5p", "v6e", "v7x", "a100-80", "h100", "h200", "b200", "cpu"
]  # fmt: skip


@dataclass(frozen=True)
class Chip:
    """The peaks of one accelerator.

    Attributes:
      flops_per_second: dense bf16.
      memory_bytes: HBM.
      memory_bytes_per_second: between HBM and the compute units.
      interconnect_bytes_per_second: to its neighbours, all links of the chip, one direction:
        half of what is advertised as bidirectional. ICI for TPUs, NVLink for GPUs. Between
        slices or nodes there is far less, see `EfficiencyConfig.interconnect`.
      source: where the numbers are from.
    """

    flops_per_second: float
    memory_bytes: float
    memory_bytes_per_second: float
    interconnect_bytes_per_second: float
    source: str


_SCALING_BOOK = "jax-ml.github.io/scaling-book"

CHIPS: dict[ChipName, Chip] = {
    "v4": Chip(
        flops_per_second=275e12,
        memory_bytes=32 * 2**30,
        memory_bytes_per_second=1200e9,
        interconnect_bytes_per_second=270e9,  # 6 links of 45e9
        source=f"docs.cloud.google.com/tpu/docs/v4; links: {_SCALING_BOOK}/tpus",
    ),
    "v5e": Chip(
        flops_per_second=197e12,
        memory_bytes=16e9,
        memory_bytes_per_second=819e9,
        interconnect_bytes_per_second=200e9,
        source="docs.cloud.google.com/tpu/docs/v5e",
    ),
    "v5p": Chip(
        flops_per_second=459e12,
        memory_bytes=95e9,
        memory_bytes_per_second=2765e9,
        interconnect_bytes_per_second=600e9,
        source="docs.cloud.google.com/tpu/docs/v5p",
    ),
    "v6e": Chip(  # Trillium
        flops_per_second=918e12,
        memory_bytes=32e9,
        memory_bytes_per_second=1638e9,
        interconnect_bytes_per_second=400e9,
        source="docs.cloud.google.com/tpu/docs/v6e",
    ),
    "v7x": Chip(  # Ironwood
        flops_per_second=2307e12,
        memory_bytes=192 * 2**30,
        memory_bytes_per_second=7380e9,
        interconnect_bytes_per_second=600e9,
        source="docs.cloud.google.com/tpu/docs/tpu7x",
    ),
    "a100-80": Chip(  # SXM4
        flops_per_second=312e12,
        memory_bytes=80e9,
        memory_bytes_per_second=2039e9,
        interconnect_bytes_per_second=300e9,
        source="NVIDIA's A100 data sheet, as quoted by glennklockwood.com/garden/processors/A100",
    ),
    "h100": Chip(  # SXM5
        flops_per_second=989.4e12,
        memory_bytes=80e9,
        memory_bytes_per_second=3350e9,
        interconnect_bytes_per_second=450e9,
        source=f"glennklockwood.com/garden/processors/h100; {_SCALING_BOOK}/gpus",
    ),
    "h200": Chip(  # SXM; computes as the H100
        flops_per_second=989.4e12,
        memory_bytes=141e9,
        memory_bytes_per_second=4800e9,
        interconnect_bytes_per_second=450e9,
        source=f"NVIDIA's system description in MLPerf inference 4.1; {_SCALING_BOOK}/gpus",
    ),
    "b200": Chip(  # HGX at 1,000 W, of which programs see 180 of 192 GB
        flops_per_second=2250e12,
        memory_bytes=180e9,
        memory_bytes_per_second=8000e9,
        interconnect_bytes_per_second=900e9,
        source="glennklockwood.com/garden/processors/B200; memory: a system description in "
        f"MLPerf inference 6.0; {_SCALING_BOOK}/gpus",
    ),
    "cpu": Chip(  # no product: a small machine with two cores
        flops_per_second=0.2e12,
        memory_bytes=16e9,
        memory_bytes_per_second=25e9,
        interconnect_bytes_per_second=10e9,
        source="measured on one such machine, in float32; its interconnect is a guess",
    ),
}


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
