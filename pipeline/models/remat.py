"""What the backward pass finds of each layer, and what it computes again: memory against time."""

from collections.abc import Callable
from typing import Any, Literal

import jax

from .products import NARROW_PRODUCT

Remat = Literal["none", "matrices", "dots", "layer"]

_POLICIES = jax.checkpoint_policies
_NARROW = _POLICIES.save_only_these_names(NARROW_PRODUCT)

_KEEP: dict[Remat, Callable[..., Any]] = {
    "matrices": _POLICIES.save_from_both_policies(
        _POLICIES.dots_with_no_batch_dims_saveable, _NARROW
    ),
    "dots": _POLICIES.save_from_both_policies(_POLICIES.dots_saveable, _NARROW),
    "layer": _POLICIES.nothing_saveable,
}


def rematerialised(layer: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """Let the backward pass compute a layer again from what is kept of it.

    Args:
      remat: "none" keeps everything; "dots" the results of all products, attention scores
        among them; "matrices" those of products with parameters; "layer" the input alone.

    Reference: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    return layer if remat == "none" else jax.checkpoint(layer, policy=_KEEP[remat])
