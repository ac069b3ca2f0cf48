"""Warm starts render what a rollout would produce, and teach it."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest
import trio

from headrace.envs import Message, Task
from headrace.pipeline.device_thread import DeviceThread
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.offline.sft import (
    SftConfig,
    demonstrations,
    pack_item,
    render,
    sft_learner,
    warm_start,
)
from headrace.pipeline.text.renderer import CharacterRenderer, TextConfig
from tests.learner.toy import WIDTH, toy_forward
from tests.rollout.test_samples import KEEP, SPLIT

RENDERER = CharacterRenderer(TextConfig("0123456789+=?"))
USER, TOOL, ANSWER = Message("user", "1+2"), Message("tool", "3"), Message("assistant", "3")
CALL = Message("assistant", "?12")


def test_conformance_16_the_mask_is_true_at_exactly_the_policys_tokens():
    tokens, mask = render([USER, CALL, TOOL, Message("assistant", "="), TOOL, ANSWER], RENDERER)
    parts = [RENDERER.text(tokens[group]) for group in runs(mask)]
    assert parts == [
        "<user>1+2<assistant>",
        "?12<end>",
        "<tool>3<assistant>",
        "=<end>",
        "<tool>3<assistant>",
        "3<end>",
    ]
    assert [bool(mask[group[0]]) for group in runs(mask)] == [False, True] * 3


def runs(mask):
    edges = np.flatnonzero(np.diff(mask.astype(int))) + 1
    return np.split(np.arange(len(mask)), edges)


def test_law_1_rendering_is_prompt_turn_delta_turn():
    tokens, _ = render([USER, CALL, TOOL, ANSWER], RENDERER)
    expected = RENDERER.prompt([USER]) + RENDERER.turn(CALL)
    expected += RENDERER.delta([TOOL]) + RENDERER.turn(ANSWER)
    assert tokens.tolist() == expected


def test_messages_after_the_last_turn_are_left_out():
    alone, longer = render([USER, ANSWER], RENDERER), render([USER, ANSWER, TOOL], RENDERER)
    np.testing.assert_array_equal(alone[0], longer[0])


@pytest.mark.parametrize("conversation", [[], [USER], [ANSWER], [USER, CALL, ANSWER]])
def test_conversations_that_no_rollout_could_have_are_refused(conversation):
    with pytest.raises(ValueError, match=r"polic|assistant"):
        render(conversation, RENDERER)


def test_a_conversation_that_a_rollout_would_split_is_refused():
    def talk(**thoughts):
        first = Message("assistant", "a", **thoughts)
        return [Message("user", "q"), first, Message("user", "more"), Message("assistant", "b")]

    for renderer, thoughts in ((SPLIT, {}), (KEEP, {}), (KEEP, {"reasoning": "hm"})):
        tokens, _ = render(talk(**thoughts), renderer)
        assert ("hm" in renderer.text(tokens)) == bool(thoughts)
    with pytest.raises(ConfigError, match=r"rewrites .* set --policy.chat.history keep"):
        render(talk(reasoning="hm"), SPLIT)


def test_the_policys_tokens_have_weight_one():
    item = pack_item([USER, ANSWER], RENDERER)
    np.testing.assert_array_equal(item.advantages, item.loss_mask.astype(np.float32))


def script(task, rng):
    total = task.data["sum"]
    return (Message("user", f"{total}+0"), Message("assistant", str(total)))


def test_demonstrations_pass_over_all_tasks_and_repeat_with_the_seed():
    tasks = [Task(str(n), {"sum": n}) for n in range(7)]

    def first(seed):
        stream = demonstrations(tasks, script, seed=seed)
        return [messages[1].content for messages in itertools.islice(stream, 14)]

    assert sorted(first(0)[:7]) == sorted(first(0)[7:]) == [str(n) for n in range(7)]
    assert first(0) == first(0) != first(1)


def run_warm_start(conversations, config):
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"embedding": (RENDERER.vocab_size, WIDTH), "mix": (WIDTH, WIDTH)}
    shapes["head"] = shapes["embedding"]
    params = {
        name: 0.3 * jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    seen = []

    async def main():
        device = DeviceThread("headrace-learner")
        async with trio.open_nursery() as nursery:
            await nursery.start(device.serve)
            learner = sft_learner(
                params, toy_forward, device, config=config, batch_shape=(2, 4, 16)
            )
            report = partial(_report, seen)
            await warm_start(learner, conversations, RENDERER, config=config, on_step=report)
            nursery.cancel_scope.cancel()

    trio.run(main)
    return seen


def _report(seen, step, metrics):
    seen.append((step, metrics["loss"]))


def test_the_loss_falls():
    tasks = [Task(str(n), {"sum": n}) for n in range(10)]
    config = SftConfig(steps=30, batch_conversations=8, learning_rate=0.05)
    seen = run_warm_start(demonstrations(tasks, script, seed=0), config)
    assert [step for step, _ in seen] == list(range(30))
    assert seen[-1][1] < 0.5 * seen[0][1]


def test_running_out_of_conversations_says_what_to_do():
    config = SftConfig(steps=2, batch_conversations=4)
    with pytest.raises(BaseExceptionGroup) as caught:
        run_warm_start(iter([(USER, ANSWER)] * 6), config)
    assert caught.group_contains(ValueError, match="step 1 needs 4 conversations, 2 were left")


@pytest.mark.parametrize(
    ("field", "value"), [("steps", -1), ("batch_conversations", 0), ("learning_rate", 0.0)]
)
def test_impossible_settings_name_value_range_and_flag(field, value):
    with pytest.raises(ConfigError, match=rf"{field} must be .*got {value}.*--"):
        SftConfig(**{field: value})
