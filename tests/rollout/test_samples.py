"""Episodes whose chat format rewrites what was said: several samples, each token-exact."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import Message
from headrace.pipeline.groups.batching import form_batch
from headrace.pipeline.text.hub_tokenizer import HubTokenizer
from headrace.pipeline.text.template_config import TemplateConfig
from headrace.pipeline.text.template_renderer import TemplateRenderer, TemplateSource
from headrace.pipeline.types import StopReason, TrajectoryGroup
from tests.rollout.talks import TASK, assert_exact, run
from tests.text.templates import KEEPING, SPECIALS, STRIPPING
from tests.text.vocabularies import definition, entry

TOKENIZER = HubTokenizer(definition("byte-level", tuple(entry(text) for text in SPECIALS)))


def make(template: str, history: str) -> TemplateRenderer:
    source = TemplateSource(template, {"bos_token": "<s>"})
    return TemplateRenderer(TOKENIZER, source, (), TemplateConfig(history=history))  # type: ignore[arg-type]


SPLIT, KEEP = make(STRIPPING, "split"), make(STRIPPING, "keep")
SAFE = make(KEEPING, "split")


def thinking(text: str) -> list[int]:
    return SPLIT.turn(Message("assistant", text, reasoning=f"hm {text}"))


def test_a_rewrite_begins_a_sample() -> None:
    lines = [Message("user", "more"), Message("tool", "5"), Message("user", "again")]
    outcome, script = run(SPLIT, [thinking(text) for text in "abcd"], lines)
    assert_exact(outcome, script)
    first, second, third = (SPLIT.text(sample.tokens.tolist()) for sample in outcome.samples)
    assert "hm a" in first
    assert "hm a" not in second  # the user has spoken again
    assert "hm b" in second
    assert "hm c" in second  # a tool's answer rewrites nothing
    assert "hm" not in third.removesuffix(SPLIT.text(thinking("d")))
    assert [len(sample.turns) for sample in outcome.samples] == [1, 2, 1]
    assert [sample.reward for sample in outcome.samples] == [4.0] * 3
    assert outcome.stop_reason is StopReason.TERMINATED
    assert (outcome.oldest_version, outcome.newest_version) == (1, 4)
    assert len(outcome.messages) == 8


def test_law_18_samples_have_keys_of_their_own() -> None:
    lines = [Message("user", "more"), Message("tool", "5"), Message("user", "again")]
    _, script = run(SPLIT, [thinking(text) for text in "abcd"], lines)
    keys = [request.key for request in script.requests]
    assert keys[0] == (1, 2)
    assert keys[1] == keys[2]
    assert len(set(keys)) == 3


@pytest.mark.parametrize("renderer", [KEEP, SAFE], ids=["keep", "safe template"])
def test_one_sample_where_nothing_is_rewritten_or_all_is_kept(renderer: TemplateRenderer) -> None:
    lines = [Message("user", "more"), Message("user", "again")]
    outcome, script = run(renderer, [thinking(text) for text in "abc"], lines)
    assert_exact(outcome, script)
    assert outcome.earlier == ()
    assert outcome.samples == (outcome,)


IDS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=12)
TURNS = IDS | st.sampled_from("abc").map(thinking)
LINES = st.builds(
    Message,
    st.sampled_from(["user", "tool"]),
    st.lists(st.sampled_from([*SPECIALS, "5", " ", "é"]), max_size=5).map("".join),
)


@given(
    turns=st.lists(TURNS, min_size=1, max_size=4),
    lines=st.lists(LINES, max_size=4),
    renderer=st.sampled_from([SPLIT, KEEP, SAFE]),
)
@settings(max_examples=40)
def test_law_1_and_2_in_every_sample_for_whatever_is_sampled(
    turns: list[list[int]], lines: list[Message], renderer: TemplateRenderer
) -> None:
    stop = renderer.stop_ids[0]
    outcome, script = run(renderer, [[*turn, stop] for turn in turns], lines)
    assert_exact(outcome, script)


def test_samples_share_the_advantage_and_every_token_counts() -> None:
    lines = [Message("user", "more"), Message("user", "again")]
    split, _ = run(SPLIT, [thinking(text) for text in "abc"], lines)
    whole, _ = run(SAFE, [SAFE.turn(Message("assistant", "x"))], [])
    group = TrajectoryGroup(0, TASK, (split, whole))
    batch, statistics = form_batch([group], _centred, batch=3, group_size=2, shape=(4, 2, 600))
    assert int(batch.segment_ids.astype(bool).sum()) == statistics.tokens
    assert statistics.tokens == sum(len(s.tokens) for t in (split, whole) for s in t.samples)
    assert statistics.sampled_tokens == batch.loss_mask.sum()
    assert (statistics.trajectories, statistics.lag_max) == (2, 2)
    assert statistics.reward_mean == 2.0
    # The advantages are those of two episodes, not of four samples.
    assert set(np.unique(batch.advantages[batch.loss_mask])) == {-1.0, 1.0}
    gained = sum(int(sample.loss_mask.sum()) for sample in split.samples)
    assert (batch.advantages[batch.loss_mask] == 1.0).sum() == gained


def _centred(rewards: np.ndarray, present: np.ndarray) -> np.ndarray:
    return (rewards - rewards[present].mean()).astype(np.float32)


def test_samples_that_disagree_are_refused() -> None:
    lines = [Message("user", "more"), Message("user", "again")]
    outcome, _ = run(SPLIT, [thinking(text) for text in "abc"], lines)
    first, second = outcome.earlier
    for earlier, message in (
        ((second, first), "must not fall"),
        ((replace(first, reward=0.5), second), "must have its reward"),
        ((replace(second, earlier=(first,)),), "has earlier samples itself"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(outcome, earlier=earlier)
