"""One table from logical axes to mesh axes.

No mesh axis is ever used twice in one array: a table that would do so is refused by name, where
JAX would complain far from the cause.
"""

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec

from .mesh import FSDP, TENSOR

MeshAxes = str | tuple[str, ...] | None
Rules = Mapping[str, MeshAxes]
LogicalAxes = Sequence[str | None]

LEARNER_RULES: Rules = {
    "layers": None,
    "width": FSDP,  # of weights
    "heads": TENSOR,
    "kv_heads": TENSOR,
    "head_width": None,
    "ffn": TENSOR,
    "experts": None,  # each is cut over its ffn, as a dense layer is
    "vocab": TENSOR,
    "rows": FSDP,  # of a batch
    "tokens": None,
    "activation": None,  # their width, which stands beside "rows"
}
"""Parameters and optimizer state are cut over all devices, a batch by rows."""

SAMPLER_RULES: Rules = {**LEARNER_RULES, "width": None, "pages": FSDP, "host_rows": None}
"""Rows and the pages of their cache are cut over "fsdp", kv heads over "tensor". Weights are whole
but for the "tensor" axis, so that decoding gathers nothing. What the host tells of rows, or reads
of them, is whole on every device: a host reaches only its own devices."""


def partition_spec(axes: LogicalAxes, rules: Rules) -> PartitionSpec:
    """Translate the logical axes of one array, one per dimension, to a `PartitionSpec`.

    Args:
      axes: a name per dimension; None is a dimension that is never cut.
      rules: name → mesh axis, several of them, or None for not cut.

    Raises:
      ValueError: for an unknown name, or two dimensions on one mesh axis.

    Example:
      >>> tuple(partition_spec(("layers", "width", "ffn"), LEARNER_RULES))
      (None, 'fsdp', 'tensor')
    """
    entries = [_mesh_axes(name, rules) for name in axes]
    used = Counter(axis for entry in entries for axis in _as_tuple(entry))
    repeated = [axis for axis, count in used.items() if count > 1]
    if repeated:
        raise ValueError(
            f"logical axes {tuple(axes)} put mesh axis {repeated[0]!r} on two dimensions; map "
            "one of them to another axis or to None"
        )
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]  # untyped in JAX


def _mesh_axes(name: str | None, rules: Rules) -> MeshAxes:
    if name is None:
        return None
    if name not in rules:
        near = difflib.get_close_matches(name, rules, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {sorted(rules)}"
        raise ValueError(f"no rule for the logical axis {name!r}; {hint}")
    return rules[name]


def _as_tuple(entry: MeshAxes) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else entry
