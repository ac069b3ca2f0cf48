r"""What decoding, prefill, an update and a publish cost on given hardware: a roofline model.

Pure arithmetic; the same hardware always costs the same. Letters: P parameters, each of p bytes
in the sampler; L layers, K key and value heads of width h, each number of q bytes in the cache;
N chips that sample, n of which hold one copy of the weights (so N / n replicas), M chips that
learn; F peak FLOP/s, G bytes and W bytes/s of memory, I bytes/s of interconnect, all per chip;
e with a name is a share of a peak (`EfficiencyConfig`).

A decode step reads the weights once, multiplies them by one vector for each row, and reads the
cache of all rows. The rows are spread evenly over the replicas:

    step = o + P p / (n W e_memory)                     read the weights: `dispatch_seconds`
             + rows · 2 P / (N F e_decode)              multiply: `row_seconds`
             + cached tokens · 2 L K h q / (N W e_memory)   read the cache: `kv_token_seconds`

    prefill = tokens · 2 P / (N F e_prefill)
    update  = tokens · 8 P / (M F e_learner)            6 P where nothing is computed twice
    publish = max(N / n · P p / M, P p / n) / (I e_interconnect)
    cache   = N / n · (n G e_usable − P p) / (2 L K h q)   tokens that fit

The publish is bounded by what the learner's chips send (a copy to every replica) or by what one
replica's chips receive, whichever takes longer.

What this neglects:
  - Reading the weights and multiplying overlap: the true step costs the larger of the two. The
    sum is linear in the rows, and too long by less than those two terms together, at worst by a
    factor of two, where both are equal.
  - Attention's FLOPs, which in prefill equal the others where 2 L H h · context = P (H query
    heads): for an 8B model of 32 heads of 128 near 27,000 tokens.
  - Collectives between the chips of a replica (put them into the overhead o), replicas that are
    not equally busy, pages that are partly empty, experts that few rows use, and copies of the
    cache where a replica has more chips than key and value heads.

Reference: Austin et al., How to Scale Your Model (2025), chapters 1 and 7.
"""

import math

from ..errors import ConfigError
from .hardware import CHIPS, Chip, ChipName, HardwareConfig
from .speeds import SamplerCosts

LEARNER_BYTES_PER_PARAMETER = 16  # in float32: master weights, gradients, Adam's two moments


def sampler_costs(hardware: HardwareConfig, *, rows: int | None = None) -> SamplerCosts:
    """Return what sampling costs on this hardware.

    Args:
      hardware: with a chip.
      rows: how many requests are served at once, over all replicas; None is no limit.

    Raises:
      ConfigError: where no replica has memory left for a cache, or there is no chip.

    Example:
      Eight billion bf16 parameters on 8 v5e, one copy of them, all peaks reached: reading
      16 GB at 8 · 819 GB/s takes 2.44 ms.

      >>> from .hardware import EfficiencyConfig
      >>> peak = EfficiencyConfig(memory=1.0, step_overhead_seconds=0.0)
      >>> hardware = HardwareConfig("v5e", sampler_chips=8, replica_chips=8, efficiency=peak)
      >>> round(sampler_costs(hardware).dispatch_seconds * 1e3, 2)
      2.44
    """
    chip, share = _chip(hardware), hardware.efficiency
    chips, replica = hardware.sampler_chips, replica_chips(hardware)
    flops_per_second = chips * chip.flops_per_second
    read_per_second = chip.memory_bytes_per_second * share.memory
    flops = 2 * hardware.parameters
    return SamplerCosts(
        dispatch_seconds=share.step_overhead_seconds
        + weight_bytes(hardware) / (replica * read_per_second),
        row_seconds=flops / (flops_per_second * share.decode_flops),
        kv_token_seconds=kv_token_bytes(hardware) / (chips * read_per_second),
        prefill_token_seconds=flops / (flops_per_second * share.prefill_flops),
        publish_seconds=publish_seconds(hardware),
        kv_tokens=_kv_tokens(hardware, chip),
        rows=rows,
    )


def learner_token_seconds(hardware: HardwareConfig) -> float:
    """Return what an update costs per token.

    Raises:
      ConfigError: where the learner's state doesn't fit on its chips, or there is no chip.
    """
    chip, share = _chip(hardware), hardware.efficiency
    chips = hardware.learner_chips
    needed = LEARNER_BYTES_PER_PARAMETER * hardware.parameters
    usable = chips * chip.memory_bytes * share.usable_memory
    if needed > usable:
        fitting = math.ceil(chips * needed / usable)
        raise ConfigError(
            f"sim.hardware.learner_chips must be >= {fitting}, as the learner's state takes "
            f"{_gigabytes(needed)} and {chips} {hardware.chip} have {_gigabytes(usable)}; "
            f"set --sim.hardware.learner-chips {fitting}"
        )
    flops = share.learner_flops_per_parameter * hardware.parameters
    return flops / (chips * chip.flops_per_second * share.learner_flops)


def publish_seconds(hardware: HardwareConfig) -> float:
    """Return how long a publish takes: the learner sends a copy of the weights to each replica."""
    chip, replica = _chip(hardware), replica_chips(hardware)
    per_second = chip.interconnect_bytes_per_second * hardware.efficiency.interconnect
    copies = hardware.sampler_chips // replica
    size = weight_bytes(hardware)
    return max(copies * size / hardware.learner_chips, size / replica) / per_second


def weight_bytes(hardware: HardwareConfig) -> float:
    """Return the size of one copy of the sampler's weights."""
    return hardware.parameters * hardware.parameter_bytes


def kv_token_bytes(hardware: HardwareConfig) -> float:
    """Return what one token takes in the cache: keys and values of all layers."""
    numbers = 2 * hardware.layers * hardware.kv_heads * hardware.head_width
    return numbers * hardware.kv_bytes


def replica_chips(hardware: HardwareConfig) -> int:
    """Return how many chips hold one copy of the weights.

    Without a choice of the user's, the smallest divisor of the sampler's chips with which the
    weights take at most half of the usable memory; all chips if there is none.
    """
    if hardware.replica_chips is not None:
        return hardware.replica_chips
    smallest, total = _smallest_replica(hardware), hardware.sampler_chips
    divisors = (count for count in range(smallest, total + 1) if total % count == 0)
    return next(divisors, total)


def replica_unit(hardware: HardwareConfig) -> int:
    """Return a number of chips of which every multiple splits into whole, small replicas."""
    return hardware.replica_chips or _smallest_replica(hardware)


def _smallest_replica(hardware: HardwareConfig) -> int:
    usable = _chip(hardware).memory_bytes * hardware.efficiency.usable_memory
    return max(1, math.ceil(2 * weight_bytes(hardware) / usable))


def _kv_tokens(hardware: HardwareConfig, chip: Chip) -> int:
    replica, weights = replica_chips(hardware), weight_bytes(hardware)
    usable = replica * chip.memory_bytes * hardware.efficiency.usable_memory
    tokens = int((usable - weights) / kv_token_bytes(hardware))
    if tokens < 1:
        raise ConfigError(
            f"sim.hardware.replica_chips must have memory for the weights "
            f"({_gigabytes(weights)}) and a cache, but {replica} {hardware.chip} have "
            f"{_gigabytes(usable)}; raise --sim.hardware.sampler-chips or "
            "--sim.hardware.replica-chips"
        )
    return tokens * (hardware.sampler_chips // replica)


def _chip(hardware: HardwareConfig) -> Chip:
    name: ChipName | None = hardware.chip
    if name is None:
        known = ", ".join(CHIPS)
        raise ConfigError(
            f"sim.hardware.chip must be one of {known}, got none; set --sim.hardware.chip"
        )
    return CHIPS[name]


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
