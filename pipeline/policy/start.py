"""The parameters that a run starts with, and the policy that it ends with."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from ...sharding.mesh import Topology
from ...sharding.partition import shard, tree_shardings
from ...sharding.rules import LEARNER_RULES
from ..models.adapted import merged_params
from ..models.config import ModelConfig
from ..models.frozen import freeze, frozen_axes
from ..models.lora import LoraConfig, adapter_axes, init_lora
from ..models.model import Model
from ..models.parameters import Params, logical_axes
from ..text.renderer import CharacterRenderer, TextConfig
from .load import load_policy
from .record import Policy

Finish = Callable[[Params], Policy]  # makes of trained parameters a policy that can be saved


class Start(NamedTuple):
    """The parameters that a run starts with.

    Attributes:
      trained: all, or adapters.
      frozen: the base beside adapters, else None.
    """

    trained: Params
    frozen: Params | None


def load_start(
    path: str | None, model: ModelConfig, text: TextConfig, topology: Topology | None = None
) -> Policy:
    """Load the policy that a run starts from, or describe one whose parameters will be drawn.

    Args:
      path: as for `load_policy`; None describes a model of these sizes that reads an alphabet.

    Raises:
      ConfigError: where it can't be loaded.
    """
    if path is not None:
        return load_policy(path, topology)
    return Policy(model, CharacterRenderer(text).vocab_size, {}, text)


def starting_params(
    policy: Policy, decoder: Model, lora: LoraConfig, *, seed: int, mesh: Mesh
) -> Start:
    """Take a policy's parameters, or draw them from the run's seed; likewise adapters.

    The values don't depend on the mesh. What is drawn is drawn on one device first, in each
    process on one of its own.

    Args:
      policy: one without parameters has them drawn.
      decoder: its model, without adapters.
      mesh: the learner's, on which they are put.
    """
    axes = logical_axes(policy.config)
    # Hashed, since a JAX key takes only the low 32 bits of a seed.
    key = jax.random.key(zlib.crc32(f"parameters {seed}".encode()))
    params = policy.params or decoder.init(key)
    if not lora.on:
        return Start(place(params, axes, mesh), None)
    base = freeze(params, lora.base)
    adapters = init_lora(jax.random.fold_in(key, 1), base, lora)
    return Start(
        place(adapters, adapter_axes(adapters, axes), mesh),
        place(base, frozen_axes(base, axes), mesh),
    )


def place(params: Params, axes: Params, mesh: Mesh) -> Params:
    """Place a learner's parameters by the logical names of their axes."""
    placed: Params = shard(params, tree_shardings(axes, mesh, LEARNER_RULES))
    return placed


def without_params(policy: Policy) -> Policy:
    """Let go of a policy's weights, once a learner has its own or holds them as frozen."""
    return replace(policy, params={})


def compile_final(policy: Policy, start: Start, lora: LoraConfig) -> Finish:
    """Compile the end of a run; adapters are merged into their base."""
    if start.frozen is None:
        return partial(_with_params, policy)
    frozen = start.frozen
    merge = jax.jit(partial(merged_params, config=lora)).lower(tuple(start)).compile()

    def merged(trained: Params) -> Policy:
        return _with_params(policy, merge((trained, frozen)))

    return merged


def _with_params(policy: Policy, params: Params) -> Policy:
    return replace(policy, params=params)
