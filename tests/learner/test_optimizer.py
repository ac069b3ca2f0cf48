"""The optimizer against AdamW written out; impossible settings."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.learner.optimizer import LearnerConfig, make_optimizer

GRADIENTS = np.random.default_rng(0).normal(size=(4, 3))


def run(config):
    optimizer = make_optimizer(config, total_steps=len(GRADIENTS))
    params = jnp.ones(3)
    state = optimizer.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for gradient in GRADIENTS:
            updates, state = optimizer.update(jnp.array(gradient, jnp.float32), state, params)
            params = optax.apply_updates(params, updates)
    return params


def oracle(config):
    x, mean, square = np.ones(3), np.zeros(3), np.zeros(3)
    for n, gradient in enumerate(GRADIENTS, 1):
        g = gradient * min(1.0, config.max_grad_norm / np.linalg.norm(gradient))
        mean = config.beta1 * mean + (1 - config.beta1) * g
        square = config.beta2 * square + (1 - config.beta2) * g**2
        direction = mean / (1 - config.beta1**n)
        direction = direction / (np.sqrt(square / (1 - config.beta2**n)) + config.adam_epsilon)
        decay = round(config.decay_share * len(GRADIENTS))
        rising, falling = n / max(1, config.warmup_steps), (len(GRADIENTS) + 1 - n) / (decay + 1)
        rate = config.learning_rate * min(1.0, rising, falling if decay else 1.0)
        x = x - rate * (direction + config.weight_decay * x)
    return x


@pytest.mark.parametrize(
    "config",
    [
        LearnerConfig(learning_rate=0.1),
        LearnerConfig(learning_rate=0.1, weight_decay=0.3, max_grad_norm=0.5, beta2=0.9),
        LearnerConfig(learning_rate=0.1, warmup_steps=1),
        LearnerConfig(learning_rate=0.1, warmup_steps=3),
        LearnerConfig(learning_rate=0.1, decay_share=0.5),
        LearnerConfig(learning_rate=0.1, warmup_steps=2, decay_share=0.75),
    ],
)
def test_the_optimizer_is_adamw_after_clipping(config):
    np.testing.assert_allclose(run(config), oracle(config), rtol=1e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("epochs", 0),
        ("beta2", 1.0),
        ("decay_share", 1.1),
        ("weight_decay", -0.1),
        ("microbatch_rows", 0),
        ("row_tokens", 1),
    ],
)
def test_impossible_settings_name_value_range_and_flag(field, value):
    with pytest.raises(ConfigError, match=rf"learner\.{field} must be .*got {value}.*--learner\."):
        LearnerConfig(**{field: value})
