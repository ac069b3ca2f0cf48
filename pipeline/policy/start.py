"""The parameters that a run starts with, and the policy that it ends with."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax

from ...sharding.mesh import Topology
from ..models.adapted import merged_params
from ..models.config import ModelConfig
from ..models.frozen import freeze
from ..models.lora import LoraConfig, init_lora
from ..models.model import Model
from ..models.parameters import Params
from ..text.renderer import CharacterRenderer, TextConfig
from .load import load_policy
from .record import Policy


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


def starting_params(policy: Policy, decoder: Model, lora: LoraConfig, *, seed: int) -> Start:
    """Take a policy's parameters, or draw them from the run's seed; likewise adapters.

    Args:
      policy: one without parameters has them drawn.
      decoder: its model, without adapters.
    """
    # Hashed, since a JAX key takes only the low 32 bits of a seed.
    key = jax.random.key(zlib.crc32(f"parameters {seed}".encode()))
    params = policy.params or decoder.init(key)
    if not lora.on:
        return Start(params, None)
    base = freeze(params, lora.base)
    return Start(init_lora(jax.random.fold_in(key, 1), base, lora), base)


def without_params(policy: Policy) -> Policy:
    """Let go of a policy's weights, once a learner has its own or holds them as frozen."""
    return replace(policy, params={})


def compile_final(policy: Policy, start: Start, lora: LoraConfig) -> Callable[[Params], Policy]:
    """Compile what makes of trained parameters a policy that can be saved.

    Adapters are merged into their base.
    """
    if start.frozen is None:
        return partial(_with_params, policy)
    frozen = start.frozen
    merge = jax.jit(partial(merged_params, config=lora)).lower(tuple(start)).compile()

    def merged(trained: Params) -> Policy:
        return _with_params(policy, merge((trained, frozen)))

    return merged


def _with_params(policy: Policy, params: Params) -> Policy:
    return replace(policy, params=params)
