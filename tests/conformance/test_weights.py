"""Stale or wrong weights: the sampler samples with exactly the weights that it is said to have."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from headrace.pipeline.algorithms.losses import sft_loss
from headrace.pipeline.groups.ledger import Cancelled, Schedule
from headrace.pipeline.learner import batch_logprobs, init_state, train_step
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.parameters import unstack
from headrace.pipeline.sampling import Sampling
from headrace.pipeline.types import SampleRequest
from headrace.pipeline.weight_sync import compile_convert, publish
from tests.conformance.test_hangs import headrace
from tests.groups.driving import admit_all
from tests.groups.test_lags import LAGS, Saturated
from tests.learner.toy import quick_jit, toy_batch, toy_items
from tests.sampler.helpers import MODEL, learner_params, run_native
from tests.test_train import TINY, lines

# A sequence that is always the same: what is sampled is forced, and only its logprobs speak.
PROMPT, CANARY = [4, 1, 9], [0, 7, 2, 10, 5, 3]
TEMPERATURE = 0.6
FORWARD = partial(forward, config=MODEL)


def canary_request():
    return SampleRequest(
        np.array(PROMPT, np.int32),
        max_tokens=len(CANARY),
        stop_ids=(),
        key=(1, 2),
        temperature=TEMPERATURE,
        sampling=Sampling(constraint=lambda sampled: [CANARY[len(sampled)]]),
    )


def canary_batch():
    (item,) = toy_items((len(PROMPT) + len(CANARY),))
    item.tokens[:] = PROMPT + CANARY
    item.loss_mask[:] = [False] * len(PROMPT) + [True] * len(CANARY)
    return toy_batch([item])


def test_conformance_7_10_what_the_learner_learnt_arrives_at_every_version():
    """Version 0 before any update, versions 1 and 2 after one each, by the learner's own step."""
    optimizer = optax.sgd(1.0)
    score = quick_jit(partial(batch_logprobs, forward=FORWARD, temperature=TEMPERATURE))
    step = quick_jit(
        partial(train_step, forward=FORWARD, loss=sft_loss, optimizer=optimizer), donate_argnums=0
    )
    state = init_state(jax.tree.map(jnp.copy, learner_params(0)), optimizer)
    convert = compile_convert(unstack, state.params)
    learner, sampled = [], []

    def read_params():
        return state.params

    async def body(sampler):
        nonlocal state
        for version in range(3):
            if version:
                state, _ = step(state, toy_batch(toy_items(seed=version)))
            await publish(read_params, sampler, version, convert=convert, device=sampler.device)
            completion = await sampler.sample(canary_request())
            assert completion.tokens.tolist() == CANARY
            assert set(completion.policy_versions.tolist()) == {version}
            sampled.append(completion.logprobs)
            learner.append(np.asarray(score(state.params, canary_batch()))[0, 0, len(PROMPT) : 9])

    run_native(body)
    np.testing.assert_allclose(sampled, learner, atol=2e-5)
    for before, after in pairwise(learner):
        assert np.abs(after - before).max() > 0.05  # else a version that is missed wouldn't show


class Cancelling(Saturated):
    """While a version is published, the newest group is cancelled, and another one started."""

    cancelled = 0

    def generate(self):
        self.ledger = admit_all(self.ledger)
        self.hang = (self.ledger.admitted - 1,) if self.ledger.schedule.max_mean_lag else ()
        return super().generate()

    def _acknowledge(self, version):
        if self.hang:
            self.tell(Cancelled(*self.hang))
            self.cancelled += 1
            self.ledger = admit_all(self.ledger)
            # Not acknowledged yet: what is started now is of the version before.
            assert {group.version for group in self.ledger.running} == {version - 1}
        super()._acknowledge(version)


@pytest.mark.parametrize("mean", [0, 1, 2, 3])
def test_conformance_9_cancellations_in_the_middle_of_publishes_change_no_lag(mean):
    """Worked out for mean = 1 and batches of one group.

    Version 0 has groups 0 and 1. Batch 0 is group 0; while version 1 is published, group 1 is
    cancelled, and group 2 takes its place, of version 0. Version 1 adds group 3. Batch 1 is
    group 2, with lag 1. While version 2 is published, group 3 is cancelled for 4, of version 1;
    batch 2 is group 4, with lag 1. And so on: the table is that of runs without cancellations.
    """
    expected = LAGS[1, mean]
    for size in (1, 3):
        run = Cancelling(Schedule(size, mean, max_lag=3))
        run.updates(len(expected))
        assert run.lags == [[lag] * size for lag in expected]
        assert run.cancelled == (len(expected) if mean else 0)  # with 0 nothing runs meanwhile
        assert (run.ledger.published, run.ledger.committed) == (len(expected), len(expected))


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_conformance_10_the_first_rollouts_are_of_the_weights_that_the_learner_has(tmp_path):
    """After a warm start; exactly on-policy, so that any difference is one of weights."""
    flags = ["--run.dir", str(tmp_path / "run"), *TINY, "--evaluate.tasks", "0"]
    on_policy = ["--schedule.max-mean-lag", "0", "--warm-start.learning-rate", "0.05"]
    done = headrace("train", "calculator", *flags, *on_policy, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for record in lines(tmp_path / "run" / "metrics.jsonl"):
        assert record["mismatch_max"] < 1e-4
        assert record["mismatch_abs"] < 1e-5
