"""How the sampler's arrays lie on a mesh, and programs that run there.

Rows, lanes and pages are cut over the data axis, and each part is on its own: the pages of a
row lie where the row does, and page numbers count from 0 in every part. So a program is one
function mapped over the parts, which never talk to each other. Heads, hidden units and the
vocabulary are cut over the tensor axis by the compiler.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import Mesh

from ...sharding.mesh import FSDP, TENSOR
from ...sharding.partition import tree_shardings, tree_specs
from ...sharding.rules import SAMPLER_RULES, Rules
from ..errors import check
from ..models.model import Model
from .config import SMALLEST_WINDOW, SamplerConfig

Axes = Any  # a tree of tuples of logical axis names


@dataclass(frozen=True)
class Layout:
    """A mesh, and which logical axis is cut over which of its axes; None for one device."""

    mesh: Mesh | None = None
    rules: Rules = field(default_factory=lambda: SAMPLER_RULES)

    @property
    def shards(self) -> int:
        """Parts along the data axis."""
        return num_shards(self.mesh)

    def shardings(self, axes: Axes) -> Any:
        """Turn axes into shardings; None on one device."""
        return None if self.mesh is None else tree_shardings(axes, self.mesh, self.rules)

    def jit(
        self,
        function: Callable[..., Any],
        *,
        inputs: tuple[Axes, ...],
        outputs: Axes,
        donate: tuple[int, ...] = (),
    ) -> Any:
        """Jit a function of one shard for all shards.

        Args:
          inputs: the axes of each operand.
          donate: the operands that are donated.
        """
        if self.mesh is None:
            return jax.jit(function, donate_argnums=donate)
        # Inside a shard only the compiler cuts, along the other axis of the mesh. What comes from
        # the host, or goes there, is whole outside and each shard's own inside.
        by_shard = {name: FSDP if axes == FSDP else None for name, axes in self.rules.items()}
        by_shard["host_rows"] = FSDP
        mapped = jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=tree_specs(inputs, by_shard),
            out_specs=tree_specs(outputs, by_shard),
            axis_names={FSDP},
            check_vma=False,
        )
        return jax.jit(
            mapped,
            in_shardings=self.shardings(inputs),
            out_shardings=self.shardings(outputs),
            donate_argnums=donate,
        )


# XLA's CPU products choose another order of sums from so many scores on.
SCORES = 4096
# Rows in a vector of XLA's CPU code. What is left over beyond whole ones it computes otherwise:
# with JAX 0.10 the logarithms of rows 8 to 12 of 13 had other last bits than those of rows 0 to 7.
LANES = 8


def fewest_rows(model: Model) -> int:
    """So many rows, on one device, pass `check_bits` whatever the context.

    Example:
      >>> from headrace.pipeline.models.config import ModelConfig
      >>> from headrace.pipeline.models.model import decoder_model
      >>> fewest_rows(decoder_model(ModelConfig(num_heads=9, num_kv_heads=3), vocab_size=8))
      4
    """
    heads = 1 if model.cached is None else model.cached.shape.num_heads
    return _whole_vectors(-(-SCORES // (SMALLEST_WINDOW * heads)))


def check_bits(config: SamplerConfig, model: Model, *, shards: int = 1, tensor: int = 1) -> None:
    """Refuse sizes with which a request's last bits would depend on its row or its neighbours.

    Raises:
      ConfigError: where a shard has more than `LANES` rows and not a multiple of them, or where
        some compiled windows have fewer than `SCORES` attention scores for all rows, or all
        lanes, of a shard, and others have not.
    """
    rows = config.rows // shards
    check(
        rows == _whole_vectors(rows),
        "sampler.rows",
        config.rows,
        f"at most {shards * LANES} or a multiple of that",
        hint=f"such as {shards * _whole_vectors(rows)}: else the last rows' bits may differ",
    )
    if model.cached is None:
        return
    heads = model.cached.shape.num_heads // tensor
    shortest, longest = config.windows[0], config.windows[-1]
    for name, count, per_head in (
        ("sampler.rows", config.rows, 1),
        ("sampler.prefill_lanes", config.prefill_lanes, config.prefill_tokens),
    ):
        scores = count // shards * per_head * heads
        least = -(-SCORES // (shortest * per_head * heads)) * shards
        alike = scores * shortest >= SCORES or scores * longest < SCORES
        condition = f">= {least} where a context of {config.context_tokens} has several windows"
        hint = "with fewer a request's last bits would depend on how long its neighbours are"
        check(len(config.windows) == 1 or alike, name, count, condition, hint=hint)


def _whole_vectors(rows: int) -> int:
    """Round up to whole vectors, if there is more than a part of one."""
    return rows if rows <= LANES else -(-rows // LANES) * LANES


def make_layout(config: SamplerConfig, model: Model, mesh: Mesh | None) -> Layout:
    """Lay the sampler out on a mesh with axes "fsdp" and "tensor".

    A vocabulary that the tensor axis can't cut evenly is whole on every device.

    Raises:
      ConfigError: for other sizes that the mesh can't cut evenly.
    """
    if mesh is None:
        check_bits(config, model)
        return Layout()
    sizes = {
        "sampler.rows": (config.rows, FSDP),
        "sampler.prefill_lanes": (config.prefill_lanes, FSDP),
    } | {name: (size, TENSOR) for name, size in model.cut.items()}
    for name, (size, axis) in sizes.items():
        parts = mesh.shape[axis]
        fits = f"a multiple of {parts}, the devices along the mesh's axis {axis!r}"
        check(size % parts == 0, name, size, fits)
    check_bits(config, model, shards=mesh.shape[FSDP], tensor=mesh.shape[TENSOR])
    parts, least = mesh.shape[FSDP], config.fewest_pages
    hint = f"each of {parts} parts of the mesh has its own; 0 takes enough"
    check(
        config.num_pages(parts) >= least,
        "sampler.pages",
        config.pages,
        f">= {parts * least}",
        hint=hint,
    )
    whole = model.vocab_size % mesh.shape[TENSOR] != 0
    return Layout(mesh, {**SAMPLER_RULES, "vocab": None} if whole else SAMPLER_RULES)


def num_shards(mesh: Mesh | None) -> int:
    """Parts along the data axis of a mesh."""
    return 1 if mesh is None else mesh.shape[FSDP]


def leading(tree: Any, *names: str | None) -> Axes:
    """Give the first dimensions of every array of a tree these names, and the others none."""

    def axes(leaf: Any) -> Axes:
        return names + (None,) * (leaf.ndim - len(names))

    return jax.tree.map(axes, tree)
