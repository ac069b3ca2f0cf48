"""Determinism and seeds: distinct keys, and a distribution that no default changes."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.groups.schedule import Schedule
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.types import SampleRequest
from tests.controller.harness import ROLLOUT, Run
from tests.sampler.helpers import (
    VOCAB,
    learner_logits,
    learner_params,
    run_native,
    sample_all,
    sampler_params,
)

STEPS, GROUPS, MEMBERS = 12, 2, 4


def seeds_with(workers, *, deterministic):
    """Of each task that was trained: its index, its keys, and the seeds of its environments."""
    keys, env_seeds, index_of = defaultdict(set), defaultdict(set), {}
    run = Run(
        schedule=Schedule(GROUPS, max_mean_lag=1, max_lag=3, deterministic=deterministic),
        rollout=replace(ROLLOUT, group_size=MEMBERS, max_episodes=workers),
        config=ControllerConfig(concurrency="fixed"),
        steps=STEPS,
    )

    def reward(task, seed):
        env_seeds[task.id].add(seed)
        return float(seed % 2)

    run.reward = reward
    run.go()
    for request in run.policy.requests:
        keys[request.priority].add(request.key)
    for group in run.groups:
        index_of[group.task.id] = group.index
    return {task: (i, keys[i], env_seeds[task]) for task, i in index_of.items()}


@pytest.mark.parametrize("deterministic", [False, True])
def test_conformance_28_no_key_comes_twice_and_none_depends_on_the_number_of_workers(
    deterministic,
):
    few, more, many = (seeds_with(n, deterministic=deterministic) for n in (MEMBERS, 12, 64))
    assert len(few) == STEPS * GROUPS
    for kind in (1, 2):  # of the sampler, and of the environments
        drawn = [key for place in few.values() for key in place[kind]]
        assert len(set(drawn)) == len(drawn) == STEPS * GROUPS * MEMBERS
    for others in (more, many):
        both = few.keys() & others.keys()
        assert len(both) > STEPS
        assert {task: few[task] for task in both} == {task: others[task] for task in both}


PROMPT = np.array([1, 2, 5], np.int32)
DRAWS = 2500


def test_conformance_29_by_default_tokens_are_drawn_from_the_softmax():
    """Through the whole sampler, with what a request and a rollout have if nothing is set."""
    requests = [SampleRequest(PROMPT, 1, (), (seed, 9)) for seed in range(DRAWS)]
    assert requests[0].temperature == RolloutConfig().temperature
    assert requests[0].sampling == RolloutConfig().sampling
    completions = []

    async def body(sampler):
        await sampler.publish(sampler_params(0), 0)
        completions.extend(await sample_all(sampler.sample, requests))

    run_native(body)
    logits = learner_logits(learner_params(0), PROMPT)[-1]
    expected = DRAWS * np.exp(logits - np.logaddexp.reduce(logits))
    drawn = np.bincount([int(each.tokens[0]) for each in completions], minlength=VOCAB)
    assert expected.min() >= 5.0
    assert ((drawn - expected) ** 2 / expected).sum() < 42.3  # 18 degrees: a probability of 0.001
