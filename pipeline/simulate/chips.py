"""Accelerators and what their makers say that they can do. Data only.

Invariant: every number is a peak of one chip, dense and without sparsity; what a program gets
of it is the business of `costs`. `source` names where the number was read.
"""

from dataclasses import dataclass
from typing import Literal

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
