"""Weights are declared once; init, axes and the sampler's form follow."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.parameters import declare, init, logical_axes, unstack
from tests.learner.toy import quick_jit

CONFIG = ModelConfig(3, 8, 4, 2, 4, 12, qk_norm=True, tied_embeddings=False)
VOCAB = 7


draw = quick_jit(partial(init, CONFIG, VOCAB))


def make_params() -> dict:
    return draw(jax.random.key(1))


def test_init_has_the_declared_shapes_and_scales() -> None:
    params = make_params()
    declared, structure = jax.tree.flatten(declare(CONFIG, VOCAB))
    leaves = structure.flatten_up_to(params)
    for weight, leaf in zip(declared, leaves, strict=True):
        assert leaf.shape == weight.shape
        assert leaf.dtype == jnp.float32
        if weight.stddev is None:
            assert (leaf == 1).all()
        else:
            assert 0.6 < np.std(leaf) / weight.stddev < 1.4
    drawn = [np.asarray(leaf).ravel() for leaf in leaves if np.std(leaf) > 0]
    normal = np.concatenate(drawn)
    assert len(np.unique(normal)) == len(normal), "two weights share their noise"


def test_equal_keys_give_equal_parameters_and_other_keys_others() -> None:
    chex.assert_trees_all_equal(make_params(), make_params())
    other = draw(jax.random.key(2))
    assert not np.array_equal(other["embedding"], make_params()["embedding"])


def test_every_dimension_has_a_logical_axis() -> None:
    params = make_params()
    axes = jax.tree.structure(params).flatten_up_to(logical_axes(CONFIG))
    for names, leaf in zip(axes, jax.tree.leaves(params), strict=True):
        assert len(names) == leaf.ndim
        assert len(set(names)) == len(names)


def test_unstack_gives_the_layers_in_order() -> None:
    params = make_params()
    unstacked = quick_jit(unstack)(params)
    assert len(unstacked["layers"]) == CONFIG.num_layers
    for index, layer in enumerate(unstacked["layers"]):
        assert layer.keys() == params["layers"].keys()
        for name, got in layer.items():
            # Of every matrix the outputs come first.
            letters = {
                "query": "dnh->nhd", "key": "dnh->nhd", "value": "dnh->nhd", "output": "nhd->dnh",
                "gate": "df->fd", "up": "df->fd", "down": "fd->df",
            }.get(name, "d->d")  # fmt: skip
            expected = np.einsum(letters, params["layers"][name][index])
            np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(unstacked["head"], params["head"])


def test_unstacked_parameters_survive_the_donation_of_the_learners() -> None:
    params = make_params()
    expected = np.array(params["embedding"])
    unstacked = quick_jit(unstack)(params)
    for leaf in jax.tree.leaves(params):
        leaf.delete()
    np.testing.assert_array_equal(unstacked["embedding"], expected)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(unstacked))


def test_unstack_casts() -> None:
    leaves = jax.tree.leaves(quick_jit(partial(unstack, dtype=jnp.bfloat16))(make_params()))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "model.num_layers must be >= 1, got 0"),
        ({"num_heads": 4, "num_kv_heads": 3}, "multiple of num_kv_heads"),
        ({"head_width": 5}, "must be even"),
        ({"rope_theta": 1.0}, "rope_theta must be > 1"),
        ({"norm_eps": 0.0}, "norm_eps must be > 0"),
    ],
)
def test_impossible_shapes_are_config_errors(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**changes)
