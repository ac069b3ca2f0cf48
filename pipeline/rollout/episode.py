"""One episode: the policy and an environment talk until one of them is done.

The outcome is a value. What an environment or the sampler does wrong, malformed answers
included, becomes an `EpisodeFailure` of a stated kind, here and nowhere else; `SystemExit`,
`KeyboardInterrupt` and cancellation are nobody's outcome and pass through. An environment that
was opened is closed, whatever happens; one that fails to close is a failure too, since what
it said can't be trusted.
"""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import trio

from ...envs.base import Env, StepResult, Task
from ...envs.messages import Message
from ..text.renderer import Renderer
from ..types import (
    Completion,
    EpisodeFailure,
    FailureKind,
    FinishReason,
    Outcome,
    Sample,
    SampleRequest,
    StopReason,
    Trajectory,
)
from .boundary import Boundary, Fault
from .config import RolloutConfig
from .trajectory import TrajectoryBuilder

LARGEST_NUMBER = 1e6  # of a reward or measurement, so that float32 keeps differences of 1


@dataclass(frozen=True)
class Rollout:
    """What every episode of a run shares."""

    make_env: Callable[[], Env]
    renderer: Renderer
    sample: Sample
    config: RolloutConfig


@dataclass(frozen=True)
class EpisodeIdentity:
    """What tells one episode from all others of the run.

    Attributes:
      key: two uint32, the trajectory's sampling key.
      env_seed: the environment's own randomness.
      priority: the sampler serves smaller numbers first.
    """

    key: tuple[int, int]
    env_seed: int
    priority: int = 0


async def run_episode(rollout: Rollout, task: Task, identity: EpisodeIdentity) -> Outcome:
    """Run one episode to its end.

    Every call of the environment and the sampler has the deadline that the config states.

    Returns:
      A `Trajectory`, or an `EpisodeFailure` if the environment or the sampler failed.
    """
    episode = _Episode(rollout, task, identity)
    try:
        async with _opened(rollout) as env:
            return await episode.run(env)
    except Fault as fault:
        return EpisodeFailure(fault.kind, str(fault), episode.record.messages)


class _Episode:
    """The state of one running episode: its record and its clock."""

    def __init__(self, rollout: Rollout, task: Task, identity: EpisodeIdentity):
        self._rollout = rollout
        self._config = rollout.config
        self._task = task
        self._identity = identity
        self._began = trio.current_time()
        self.record = TrajectoryBuilder([])

    async def run(self, env: Env) -> Trajectory:
        """Talk until one side is done, or a limit is reached."""
        await self._reset(env)
        for turn in range(self._config.max_turns):
            finish = await self._act()
            if finish is not FinishReason.STOP:
                return self._finish(self._why_cut())
            result, ids = await self._answer(env)
            if result.terminated or result.truncated:
                over = StopReason.TERMINATED if result.terminated else StopReason.TRUNCATED
                return self._finish(over)
            if turn + 1 < self._config.max_turns and not self._observe(ids):
                return self._finish(StopReason.MAX_TOKENS)
        return self._finish(StopReason.MAX_TURNS)

    async def _reset(self, env: Env) -> None:
        with _env_boundary(self._config, "reset"):
            messages = await env.reset(self._task, self._identity.env_seed)
            prompt = self._rollout.renderer.prompt(messages)
        self.record.say(messages)
        self.record.observe(prompt)
        if not 1 <= len(prompt) < self._config.max_tokens:
            raise Fault(
                FailureKind.OVERLONG,
                f"task {self._task.id!r} has a prompt of {len(prompt)} tokens, which must be in "
                f"1..{self._config.max_tokens - 1}; raise --rollout.max-tokens",
            )

    async def _act(self) -> FinishReason:
        """Let the policy speak once."""
        began = trio.current_time()
        completion = await self._sample()
        if not len(completion.tokens):
            raise Fault(
                FailureKind.OVERLONG,
                f"{len(self.record)} tokens don't fit the sampler; raise --sampler.context-tokens",
            )
        self.record.act(completion, sample_seconds=trio.current_time() - began)
        return completion.finish

    async def _sample(self) -> Completion:
        room = self._config.max_tokens - len(self.record)
        request = SampleRequest(
            tokens=self.record.tokens,
            max_tokens=min(self._config.max_turn_tokens, room),
            stop_ids=self._rollout.renderer.stop_ids,
            key=self._identity.key,
            temperature=self._config.temperature,
            priority=self._identity.priority,
        )
        kinds = FailureKind.SAMPLER_ERROR, FailureKind.SAMPLER_TIMEOUT
        with Boundary("sample", kinds, self._config.sample_deadline_seconds):
            return await self._rollout.sample(request)

    async def _answer(self, env: Env) -> tuple[StepResult, list[int]]:
        """Let the environment answer the turn sampled last; return its answer, also as ids."""
        began = trio.current_time()
        message = self._rollout.renderer.parse(self.record.last_turn_tokens)
        self.record.say([message])
        with _env_boundary(self._config, "step"):
            result = _checked(await env.step(message))
            over = result.terminated or result.truncated
            ids = [] if over else self._rollout.renderer.delta(result.messages)
        self.record.answered(result, env_seconds=trio.current_time() - began)
        return result, ids

    def _observe(self, ids: list[int]) -> bool:
        """Append what the policy reads next; false if no token could be sampled after it."""
        if len(self.record) + len(ids) >= self._config.max_tokens:
            return False
        self.record.observe(ids)
        return True

    def _why_cut(self) -> StopReason:
        full = len(self.record) >= self._config.max_tokens
        return StopReason.MAX_TOKENS if full else StopReason.MAX_TURN_TOKENS

    def _finish(self, reason: StopReason) -> Trajectory:
        return self.record.finish(reason, seconds=trio.current_time() - self._began)


def _checked(result: StepResult) -> StepResult:
    """Refuse an answer that would do harm later; return it with plain numbers.

    One NaN or huge reward would spoil the advantages of a whole batch.
    """
    if not isinstance(result, StepResult):
        raise TypeError(f"step must return a StepResult, got {result!r:.100}")
    for message in result.messages:
        if not (isinstance(message, Message) and isinstance(message.content, str)):
            raise TypeError(f"messages must be Messages with text, got {message!r:.100}")
    return replace(
        result,
        messages=tuple(result.messages),
        reward=_number("reward", result.reward),
        info={str(name): _number(str(name), value) for name, value in result.info.items()},
    )


def _number(name: str, value: Any) -> float:
    number = float(value) if isinstance(value, Real) else math.nan
    if not abs(number) <= LARGEST_NUMBER:  # not "greater", which NaN is not either
        raise ValueError(
            f"{name} must be a number from -{LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, "
            f"got {value!r:.100}"
        )
    return number


@asynccontextmanager
async def _opened(rollout: Rollout) -> AsyncIterator[Env]:
    """Open an environment; close it even when cancelled, within the deadline.

    One cancel scope spans its whole life, so that it may hold a nursery from opening to closing.
    """
    config = rollout.config
    life = _env_boundary(config, "open")
    first: BaseException | None = None  # what came first is what counts
    try:
        with life:
            manager = rollout.make_env()
            env = await manager.__aenter__()
            life.pause()
            try:
                yield env
            except BaseException as error:
                first = error
            life.resume("environment close", config.close_deadline_seconds, shield=True)
            await manager.__aexit__(None, None, None)
    except Fault:
        if first is None:
            raise
    if first is not None:
        raise first


def _env_boundary(config: RolloutConfig, what: str) -> Boundary:
    kinds = FailureKind.ENV_ERROR, FailureKind.ENV_TIMEOUT
    return Boundary(f"environment {what}", kinds, config.env_deadline_seconds)
