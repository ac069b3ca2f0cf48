"""The laws of one optimizer step: splits, masks, empty batches, ratios, one trace."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from headrace.pipeline.algorithms.config import ImportanceConfig, KlConfig
from headrace.pipeline.algorithms.losses import AlgorithmConfig, policy_loss, sft_loss
from headrace.pipeline.learner.logprobs import batch_logprobs
from headrace.pipeline.learner.optimizer import LearnerConfig, make_optimizer
from headrace.pipeline.learner.state import init_state
from headrace.pipeline.learner.step import Anchors, train_step
from headrace.pipeline.learner.tiles import TileSize
from headrace.pipeline.learner.vocabulary import score_targets
from tests.learner.toy import (
    oracle_logprobs,
    quick_jit,
    spread,
    toy_batch,
    toy_forward,
    toy_items,
    toy_params,
)

LOSSES = {
    "grpo": partial(policy_loss, config=AlgorithmConfig(entropy_bonus=0.01, kl=KlConfig(0.1))),
    "sft": sft_loss,
    # All that is reduced over sequences, at once.
    "sequences": partial(
        policy_loss,
        config=AlgorithmConfig(
            ratio="sequence",
            aggregation="sequence_mean",
            importance=ImportanceConfig(
                weights="sequence", mask="geometric", target="full", staleness_power=1.0
            ),
        ),
    ),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
SGD = optax.sgd(1.0)  # the change of the parameters is the negative gradient


@partial(quick_jit, static_argnames=("loss", "optimizer", "temperature"))
def step(state, batch, anchors=None, *, loss, optimizer=SGD, temperature=1.0):
    return train_step(
        state,
        batch,
        anchors,
        forward=toy_forward,
        loss=loss,
        optimizer=optimizer,
        temperature=temperature,
    )


def gradient(batch, loss):
    params = toy_params()
    state, metrics = step(init_state(params, SGD), batch, loss=loss)
    return jax.tree.map(lambda old, new: old - new, params, state.params), metrics


def assert_same_update(first, second, atol=1e-6):
    for found, expected in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(found, expected, atol=atol, rtol=1e-5)


def rows_of(batch, order):
    """Put the rows of a batch into another order, across microbatches too."""

    def shuffle(array):
        return array.reshape(-1, array.shape[2])[order].reshape(array.shape)

    arrays = [shuffle(array) for array in batch[:-2]]
    return type(batch)(*arrays, microbatches=batch.microbatches)


def test_the_gradient_is_that_of_a_loop_over_sequences():
    items, params = toy_items(), toy_params()
    count = sum(int(item.loss_mask.sum()) for item in items)

    def total(scale):
        moved = {**params, "head": np.asarray(params["head"], np.float64) * scale}
        return -sum(
            (oracle_logprobs(moved, item)[0] * item.advantages * item.loss_mask).sum()
            for item in items
        )

    found, metrics = gradient(toy_batch(items), sft_loss)
    assert metrics["tokens"] == count
    np.testing.assert_allclose(metrics["loss"], total(1.0) / count, rtol=1e-5)
    numeric = (total(1 + 1e-5) - total(1 - 1e-5)) / 2e-5 / count
    np.testing.assert_allclose((found["head"] * params["head"]).sum(), numeric, rtol=1e-3)


@every_loss
@pytest.mark.parametrize("used", [1, 2, 4])
def test_law_12_the_split_into_microbatches_changes_no_gradient(loss, used):
    batch = toy_batch()
    expected, expected_metrics = gradient(batch, loss)
    found, metrics = gradient(spread(batch, used), loss)
    assert_same_update(found, expected)
    for name in metrics:
        np.testing.assert_allclose(metrics[name], expected_metrics[name], atol=1e-5, rtol=1e-4)


@every_loss
def test_tokens_that_do_not_count_may_be_left_out_of_tiles(monkeypatch, loss):
    batch = toy_batch()
    expected, expected_metrics = gradient(batch, loss)
    monkeypatch.setitem(score_targets.__kwdefaults__, "tile", TileSize(entries=4, logits=64))
    fresh = quick_jit(partial(train_step, forward=toy_forward, loss=loss, optimizer=SGD))
    state, metrics = fresh(init_state(toy_params(), SGD), batch)
    found = jax.tree.map(lambda old, new: old - new, toy_params(), state.params)
    assert_same_update(found, expected)
    for name in metrics:
        np.testing.assert_allclose(metrics[name], expected_metrics[name], atol=1e-5, rtol=1e-4)


@every_loss
def test_law_10_12_packed_and_padded_rows_give_the_same_gradient(loss):
    items = toy_items()
    packed = toy_batch(items)
    assert packed.segment_ids.max() > 1
    alone = [toy_batch([item], microbatches=1, rows=1) for item in items]
    rows = [
        np.concatenate(arrays, axis=1) for arrays in zip(*(b[:-2] for b in alone), strict=True)
    ]
    padded = [np.concatenate([array, *3 * [np.zeros_like(array)]]) for array in rows]
    padded = type(packed)(*padded, microbatches=np.array(1, np.int32))
    assert padded.tokens.shape == packed.tokens.shape
    assert_same_update(gradient(padded, loss)[0], gradient(packed, loss)[0])


def one_a_row(items, used):
    """The items padded, not packed: each in a row of its own."""
    nothing = toy_batch([], microbatches=1, rows=32 - len(items))
    alone = [toy_batch([item], microbatches=1, rows=1) for item in items]
    parts = zip(*(batch[:-2] for batch in (*alone, nothing)), strict=True)
    arrays = [np.concatenate(part, axis=1).reshape(4, 8, 12) for part in parts]
    return spread(type(nothing)(*arrays, microbatches=np.array(4, np.int32)), used)


@settings(max_examples=10)
@given(
    lengths=st.lists(st.integers(2, 12), max_size=16),
    used=st.sampled_from([1, 2, 4]),
    packed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_law_12_however_sequences_lie_the_gradient_is_the_same(lengths, used, packed, seed):
    """Drawn lengths, also none; any number of microbatches, packed or not, in any order."""
    loss, items = LOSSES["grpo"], toy_items(lengths, seed)
    batch = spread(toy_batch(items), used) if packed else one_a_row(items, used)
    order = np.random.default_rng(seed).permutation(8 * used)
    order = np.concatenate([order, np.arange(8 * used, 32)])
    found, metrics = gradient(rows_of(batch, order), loss)
    expected, expected_metrics = gradient(toy_batch(items), loss)
    assert_same_update(found, expected)
    for name in ("loss", "tokens", "skipped"):
        np.testing.assert_allclose(metrics[name], expected_metrics[name], rtol=1e-5, atol=1e-6)
    assert bool(metrics["skipped"]) == (not items)


def test_law_12_the_shape_of_the_rows_changes_no_gradient():
    loss = LOSSES["grpo"]
    wide = toy_batch(microbatches=1, rows=2, row_tokens=40)
    assert_same_update(gradient(wide, loss)[0], gradient(toy_batch(), loss)[0])


@every_loss
def test_law_12_row_order_changes_no_gradient(loss):
    batch = spread(toy_batch(), 4)
    order = np.random.default_rng(0).permutation(32)
    assert_same_update(gradient(rows_of(batch, order), loss)[0], gradient(batch, loss)[0])


@pytest.mark.parametrize(
    ("devices", "name"),
    [*((count, "grpo") for count in (1, 2, 4, 8)), (4, "sft"), (8, "sequences")],
)
def test_law_12_sharding_the_rows_changes_no_gradient(devices, name):
    loss, batch = LOSSES[name], spread(toy_batch(), 2)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("rows",))
    place = partial(jax.device_put, device=NamedSharding(mesh, P(None, "rows")))
    sharded = type(batch)(*map(place, batch[:-2]), microbatches=batch.microbatches)
    state = jax.device_put(init_state(toy_params(), SGD), NamedSharding(mesh, P()))
    moved, _ = step(state, sharded, loss=loss)
    found = jax.tree.map(lambda old, new: old - new, toy_params(), jax.device_get(moved.params))
    assert_same_update(found, gradient(batch, loss)[0])


@every_loss
def test_law_11_nan_in_masked_and_padded_places_changes_nothing(loss):
    batch = toy_batch()
    mask = batch.loss_mask
    poisoned = batch._replace(
        rollout_logprobs=np.where(mask, batch.rollout_logprobs, np.nan),
        advantages=np.where(mask, batch.advantages, np.nan),
        tokens=np.where(batch.segment_ids > 0, batch.tokens, 7).astype(np.int32),
        positions=np.where(batch.segment_ids > 0, batch.positions, 3).astype(np.int32),
    )
    clean, metrics = gradient(batch, loss)
    found, poisoned_metrics = gradient(poisoned, loss)
    chex.assert_trees_all_equal(found, clean)
    chex.assert_trees_all_equal(poisoned_metrics, metrics)


@every_loss
def test_law_11_microbatches_out_of_use_change_nothing(loss):
    batch = spread(toy_batch(), 2)
    used = 2
    rubbish = batch._replace(
        tokens=np.where(np.arange(4)[:, None, None] < used, batch.tokens, 5).astype(np.int32),
        segment_ids=np.where(np.arange(4)[:, None, None] < used, batch.segment_ids, 1).astype(
            np.int32
        ),
        loss_mask=np.where(np.arange(4)[:, None, None] < used, batch.loss_mask, True),
    )
    chex.assert_trees_all_equal(gradient(rubbish, loss)[0], gradient(batch, loss)[0])


@every_loss
def test_conformance_14_a_masked_target_does_not_matter_and_an_unmasked_one_does(loss):
    item = toy_items(lengths=(6,))[0]
    item.loss_mask[:] = [False, True, True, True, True, False]
    item.advantages[:] = [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    batch = toy_batch([item])
    assert batch.tokens[0, 0, 5] != 9
    masked = batch._replace(tokens=batch.tokens.copy())
    masked.tokens[0, 0, 5] = 9  # the last token: nothing is predicted from it
    chex.assert_trees_all_equal(gradient(masked, loss)[0], gradient(batch, loss)[0])
    trained = batch._replace(tokens=batch.tokens.copy())
    trained.tokens[0, 0, 4] = (trained.tokens[0, 0, 4] + 1) % 11
    assert float(gradient(trained, loss)[1]["loss"]) != float(gradient(batch, loss)[1]["loss"])


@every_loss
def test_conformance_17_an_all_masked_row_changes_nothing(loss):
    items = toy_items(lengths=(5, 9))
    silent = toy_items(lengths=(12,))[0]
    silent.loss_mask[:] = False
    silent.rollout_logprobs[:] = np.nan
    with_silent = toy_batch([silent, *items])
    found, _ = gradient(with_silent, loss)
    assert_same_update(found, gradient(toy_batch(items), loss)[0])


@pytest.mark.parametrize("items", ["none", "all masked"])
def test_conformance_17_a_batch_without_usable_tokens_changes_nothing(items):
    loss = LOSSES["grpo"]
    drawn = [] if items == "none" else toy_items()
    batch = toy_batch(drawn)
    batch = batch._replace(loss_mask=np.zeros_like(batch.loss_mask))
    optimizer = make_optimizer(LearnerConfig(learning_rate=0.1, weight_decay=0.1))
    state = init_state(toy_params(), optimizer)
    state, _ = step(state, toy_batch(), loss=loss, optimizer=optimizer)  # Adam has momentum now
    after, metrics = step(state, batch, loss=loss, optimizer=optimizer)
    chex.assert_trees_all_equal(after, state)
    assert all(np.isfinite(value) for value in metrics.values())
    assert (metrics["skipped"], metrics["loss"], metrics["tokens"]) == (1.0, 0.0, 0.0)


def test_a_gradient_that_is_not_finite_changes_nothing_and_shows():
    batch = toy_batch()
    batch = batch._replace(advantages=np.full_like(batch.advantages, np.inf))
    state = init_state(toy_params(), SGD)
    after, metrics = step(state, batch, loss=sft_loss)
    chex.assert_trees_all_equal(after, state)
    assert metrics["skipped"] == 1.0
    assert not np.isfinite(metrics["grad_norm"])


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_conformance_19_20_the_ratio_is_one_in_the_first_update_and_moves_in_the_second(
    temperature,
):
    loss, params, batch = LOSSES["grpo"], toy_params(), toy_batch()
    old = quick_jit(partial(batch_logprobs, forward=toy_forward, temperature=temperature))(
        params, batch
    )
    batch = batch._replace(rollout_logprobs=np.asarray(old))
    state = init_state(params, SGD)
    first_state, first = step(state, batch, Anchors(old, old), loss=loss, temperature=temperature)
    _, second = step(first_state, batch, Anchors(old, old), loss=loss, temperature=temperature)
    np.testing.assert_allclose(first["ratio_max"], 1.0, atol=1e-5)
    np.testing.assert_allclose(first["mismatch_max"], 0.0, atol=1e-5)
    assert second["ratio_max"] > 1.001


def test_without_anchors_the_rollout_logprobs_are_the_old_ones():
    loss, batch = LOSSES["grpo"], toy_batch()
    state = init_state(toy_params(), SGD)
    rollout = jnp.asarray(batch.rollout_logprobs)
    given, _ = step(state, batch, Anchors(rollout, rollout), loss=loss)
    implied, _ = step(state, batch, loss=loss)
    chex.assert_trees_all_equal(given, implied)


def test_one_trace_serves_batches_of_every_size():
    @partial(quick_jit, donate_argnums=0)
    @partial(chex.assert_max_traces, n=1)
    def compiled(state, batch):
        return train_step(state, batch, forward=toy_forward, loss=sft_loss, optimizer=SGD)

    state = init_state(toy_params(), SGD)
    for lengths in [(), (3,), (5, 9, 3), tuple(range(2, 13))]:
        batch = toy_batch(toy_items(lengths))
        state, metrics = compiled(state, batch)
        assert int(metrics["tokens"]) == batch.loss_mask.sum()


def test_the_state_is_donated_without_a_copy():
    optimizer = make_optimizer(LearnerConfig())
    state = init_state(toy_params(), optimizer)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    lowered = jax.jit(
        partial(train_step, forward=toy_forward, loss=sft_loss, optimizer=optimizer),
        donate_argnums=0,
    ).lower(state, toy_batch())
    assert lowered.compile().memory_analysis().alias_size_in_bytes >= size


def test_gradients_of_half_precision_parameters_are_summed_in_float32():
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), toy_params())

    def forward(params, *rows):
        return toy_forward(jax.tree.map(lambda x: x.astype(jnp.float32), params), *rows)

    run = quick_jit(partial(train_step, forward=forward, loss=sft_loss, optimizer=SGD))
    state, metrics = run(init_state(params, SGD), toy_batch())
    assert metrics["grad_norm"].dtype == jnp.float32
    assert metrics["moved_share"] > 0.5
    tiny = optax.sgd(1e-8)
    slow = quick_jit(partial(train_step, forward=forward, loss=sft_loss, optimizer=tiny))
    _, lost = slow(init_state(params, tiny), toy_batch())
    assert lost["update_norm"] > 0
    assert lost["moved_share"] == 0.0  # bfloat16 rounds such updates away
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.bfloat16)}
