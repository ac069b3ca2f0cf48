"""Conversations for tests: scripted turns and lines, and laws 1 and 2 checked on the record."""

from collections.abc import Sequence

import numpy as np
import trio
import trio.testing

from headrace.envs import Message, StepResult, Task
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import EpisodeIdentity, Rollout, run_episode
from headrace.pipeline.text.renderer import Renderer
from headrace.pipeline.types import Completion, FinishReason, SampleRequest, Trajectory

CONFIG = RolloutConfig(max_turns=6, max_tokens=4000, max_turn_tokens=500)
TASK = Task("t")


class Talk:
    """An environment that says its lines, one after each turn; a reward of 1 for each turn."""

    def __init__(self, lines: Sequence[Message]):
        self._lines = [Message("user", "question"), *lines]

    async def __aenter__(self) -> "Talk":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def reset(self, task: Task, seed: int) -> list[Message]:
        await trio.lowlevel.checkpoint()
        return [self._lines.pop(0)]

    async def step(self, message: Message) -> StepResult:
        await trio.lowlevel.checkpoint()
        if not self._lines:
            return StepResult(reward=1.0, terminated=True)
        return StepResult((self._lines.pop(0),), reward=1.0)


class Script:
    """A sampler that says the given turns; version n samples turn n."""

    def __init__(self, turns: Sequence[list[int]]):
        self._turns = turns
        self.requests: list[SampleRequest] = []
        self.completions: list[Completion] = []

    async def __call__(self, request: SampleRequest) -> Completion:
        await trio.lowlevel.checkpoint()
        tokens = np.array(self._turns[len(self.requests) % len(self._turns)], np.int32)
        self.requests.append(request)
        count = len(self.requests)
        logprobs = -np.arange(1, len(tokens) + 1, dtype=np.float32)
        versions = np.full(len(tokens), count, np.int32)
        self.completions.append(Completion(tokens, logprobs, versions, FinishReason.STOP))
        return self.completions[-1]


def run(
    renderer: Renderer, turns: Sequence[list[int]], lines: Sequence[Message]
) -> tuple[Trajectory, Script]:
    script = Script(turns)
    rollout = Rollout(lambda: Talk(lines), renderer, script, CONFIG)

    async def main() -> object:
        return await run_episode(rollout, TASK, EpisodeIdentity(key=(1, 2), env_seed=3))

    outcome = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert isinstance(outcome, Trajectory), outcome
    return outcome, script


def assert_exact(outcome: Trajectory, script: Script) -> None:
    """Laws 1 and 2, in each sample, against what the sampler was asked and gave."""
    calls = iter(zip(script.requests, script.completions, strict=True))
    for sample in outcome.samples:
        assert sample.turns
        sampled = np.zeros(len(sample.tokens), bool)
        for turn in sample.turns:
            request, completion = next(calls)
            span = slice(turn.start, turn.end)
            np.testing.assert_array_equal(request.tokens, sample.tokens[: turn.start])
            np.testing.assert_array_equal(completion.tokens, sample.tokens[span])
            np.testing.assert_array_equal(completion.logprobs, sample.rollout_logprobs[span])
            np.testing.assert_array_equal(completion.policy_versions, sample.policy_versions[span])
            sampled[span] = True
        np.testing.assert_array_equal(sample.loss_mask, sampled)
    assert next(calls, None) is None
