"""Tokens and masks: what was sampled is what counts, and nothing else."""

import numpy as np

from headrace.envs import Message, Task
from headrace.pipeline.groups.batching import form_batch
from headrace.pipeline.learner.logprobs import counted_tokens
from headrace.pipeline.types import TrajectoryGroup
from tests.rollout.talks import run
from tests.text.test_token_exact import smollm_chat

PADDING = 0


def test_conformance_15_a_sampled_eos_is_learnt_though_padding_has_its_id():
    """SmolLM2's <|endoftext|> is 0; the policy ends its first turn by it, the second as it should.

    From the sampler to the learner's mask; rows are padded with the same id.
    """
    renderer = smollm_chat()
    end, eos = renderer.stop_ids
    assert eos == PADDING
    turns = [[*renderer.tokenizer.encode("So it is 2."), stop] for stop in (eos, end)]
    trajectory, _ = run(renderer, turns, [Message("user", "And then?")])
    group = TrajectoryGroup(0, Task("t"), (trajectory,))
    batch, _ = form_batch(
        [group], lambda rewards, present: rewards, batch=9, group_size=1, shape=(1, 2, 512)
    )
    counted = np.asarray(counted_tokens(batch))[0, 0]
    tokens = batch.tokens[0, 0]
    assert tokens[counted].tolist() == turns[0] + turns[1]
    padding = np.asarray(batch.segment_ids[0, 0]) == 0
    assert padding.sum() > 100
    assert set(tokens[padding].tolist()) == {PADDING}
    assert not counted[padding].any()
