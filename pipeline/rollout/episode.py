"""One episode: the policy and an environment talk until one of them is done.

The outcome is a value. What an environment, the sampler or a reward does wrong, malformed answers
included, becomes an `EpisodeFailure` of a stated kind, here and nowhere else; `SystemExit`,
`KeyboardInterrupt` and cancellation are nobody's outcome and pass through. An environment that
was opened is closed, whatever happens; one that fails to close is a failure too, since what
it said can't be trusted.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import trio

from ...envs.base import EPISODE, Env, StepResult, Task
from ...envs.cancellation import is_stray
from ...envs.messages import Message
from ...envs.rewards.reward import ENV
from ...envs.rewards.scorer import Scorer
from ..errors import describe
from ..text.renderer import Renderer
from ..types import (
    EpisodeFailure,
    FailureKind,
    FinishReason,
    Outcome,
    Sample,
    SampleRequest,
    StopReason,
    Trajectory,
)
from .answers import checked_answer, checked_messages, is_flood, without_flood
from .boundary import Boundary, Fault
from .config import RolloutConfig
from .scoring import record_of, weighted_turns, with_rewards
from .trajectory import TrajectoryBuilder

_NOTHING_SAID = TrajectoryBuilder([])
_ENV = FailureKind.ENV_ERROR, FailureKind.ENV_TIMEOUT
_REWARD = FailureKind.REWARD_ERROR, FailureKind.REWARD_TIMEOUT
_SAMPLER = FailureKind.SAMPLER_ERROR, FailureKind.SAMPLER_TIMEOUT


@dataclass(frozen=True)
class Rollout:
    """What every episode of a run shares.

    Attributes:
      scorer: gives the rewards beside the environment's own.
      env_name: for messages.
    """

    make_env: Callable[[], Env]
    renderer: Renderer
    sample: Sample
    config: RolloutConfig
    scorer: Scorer | None = None
    env_name: str = "environment"


class EpisodeIdentity(NamedTuple):
    """What tells one episode from all others of the run.

    Attributes:
      key: two uint32, the trajectory's sampling key.
      env_seed: the environment's own randomness.
      priority: the sampler serves smaller numbers first.
      version: the policy version that samples all turns; None follows the newest.
      name: for people and logs; no other episode of the run has it.
    """

    key: tuple[int, int]
    env_seed: int
    priority: int = 0
    version: int | None = None
    name: str = "episode"


async def run_episode(rollout: Rollout, task: Task, identity: EpisodeIdentity) -> Outcome:
    """Run one episode to its end; see `Episode.run`."""
    return await Episode(rollout, task, identity).run()


class Episode:
    """One episode: await `run` once.

    One scope, from opening the environment to having closed it. After a failure the environment is
    closed in another one, so that a missed deadline, or `stop`, leaves time to do it in order.
    An environment that holds a nursery can only be closed in the scope in which it was opened, and
    no deadline of the work may cancel what it holds: there the work has a scope within. If such
    a one opens in the very moment of its deadline, it is closed in a scope that is cancelled.
    """

    def __init__(self, rollout: Rollout, task: Task, identity: EpisodeIdentity):
        self._rollout = rollout
        self._config = rollout.config
        self._task = task
        self._identity = identity
        # The boundary of the present call.
        self._now = Boundary("environment open", _ENV, rollout.config.env_deadline_seconds)
        self._began = self._now.since
        self._working = False  # the environment is open and isn't being closed
        self._stopped: str | None = None
        self._record = _NOTHING_SAID

    async def run(self) -> Outcome:
        """Run to the end; every call of the environment and the sampler has its deadline.

        Returns:
          A `Trajectory`, or an `EpisodeFailure` if the environment, the sampler or a reward
          failed, or the episode was stopped.
        """
        EPISODE.set(self._identity.name)
        try:
            trajectory = await self._open_work_close()
            scorer = self._rollout.scorer
            return trajectory if scorer is None else await self._score(trajectory, scorer)
        except Fault as fault:
            return EpisodeFailure(fault.kind, str(fault), self._record.messages)

    def stop(self, reason: str) -> None:
        """End the episode soon, with a failure of kind `CANCELLED`; its environment is closed.

        An environment that is just being opened is opened first, within its deadline.

        Args:
          reason: for people.
        """
        self._stopped = reason
        if self._working:
            self._now.stop(reason)

    @property
    def since(self) -> float:
        """When the present call began, in seconds of trio's clock."""
        return self._now.since

    def describe(self, now: float) -> str:
        """Say what the episode waits for, and since when."""
        call = self._now
        return (
            f"{self._identity.name} (task {self._task.id!r}): {call.what or 'between calls'}, "
            f"for {now - call.since:.1f} s of at most {call.deadline_seconds:g} s"
        )

    async def _open_work_close(self) -> Trajectory:
        """Open the environment, work with it, and close it, whatever happens."""
        life = self._now
        left_open: Env | None = None  # where the scope ends with an error
        work: Trajectory | BaseException | None = None
        try:
            with life:
                manager = self._rollout.make_env()
                env = await manager.__aenter__()
                if trio.lowlevel.current_task().child_nurseries:
                    work = await self._work_within(life, env)
                else:
                    left_open = manager
                    life.returned()
                    self._begin(life)
                    work = await self._talk(env)
                    left_open = None
                await self._close(manager, life)
        except BaseException as error:
            if left_open is not None:
                own = Boundary("environment close", _ENV, self._config.close_deadline_seconds)
                with suppress(Fault), own:  # what came first is what counts
                    await self._close(left_open, own)
            came_first = isinstance(work, BaseException) and not is_stray(work)
            if not (came_first and isinstance(error, Fault)):
                raise
        if isinstance(work, BaseException):
            raise life.stray() if is_stray(work) else work  # a stray one came of the nursery
        assert work is not None
        return work

    async def _work_within(self, life: Boundary, env: Env) -> Trajectory | BaseException:
        """Work in a scope within the one that the environment lives in."""
        try:
            life.pause()
            deadline = self._config.env_deadline_seconds
            with self._begin(Boundary("environment reset", _ENV, deadline)):
                return await self._talk(env)
        except BaseException as error:  # to be raised when the environment is closed
            return error

    def _begin(self, boundary: Boundary) -> Boundary:
        """Go on in this boundary, which is stopped at once if the episode was before."""
        self._now, self._working = boundary, True
        if self._stopped is not None:
            boundary.stop(self._stopped)
        return boundary

    async def _close(self, manager: Env, boundary: Boundary) -> None:
        self._now, self._working = boundary, False
        boundary.shield()
        boundary.call("environment close", _ENV, self._config.close_deadline_seconds)
        await manager.__aexit__(None, None, None)

    async def _score(self, trajectory: Trajectory, scorer: Scorer) -> Trajectory:
        # Each reward has a deadline of its own, which runs while it has a place.
        deadline = self._config.sample_deadline_seconds
        with self._begin(Boundary("the rewards", _REWARD, deadline)):
            found = await scorer.score(record_of(self._task, trajectory))
            self._now.returned()
        weighted = weighted_turns(trajectory, scorer.weights[ENV])
        return with_rewards(weighted, found, scorer)

    async def _talk(self, env: Env) -> Trajectory:
        """Talk until one side is done, or a limit is reached."""
        await self._reset(env)
        for turn in range(self._config.max_turns):
            finish = await self._act()
            if finish is not FinishReason.STOP:
                return self._finish(self._why_cut())
            result, read = await self._answer(env)
            if result.terminated or result.truncated:
                over = StopReason.TERMINATED if result.terminated else StopReason.TRUNCATED
                return self._finish(over)
            if turn + 1 < self._config.max_turns and not self._observe(read):
                return self._finish(StopReason.MAX_TOKENS)
        return self._finish(StopReason.MAX_TURNS)

    async def _reset(self, env: Env) -> None:
        self._now.call("environment reset", _ENV, self._config.env_deadline_seconds)
        messages = checked_messages(await env.reset(self._task, self._identity.env_seed))
        if is_flood(messages, self._config.max_tokens):
            raise self._prompt_too_long(f"at least {self._config.max_tokens}")
        prompt = self._rollout.renderer.prompt(messages)
        self._now.returned()
        self._record = TrajectoryBuilder(prompt)
        self._record.say(messages)
        if not 1 <= len(prompt) < self._config.max_tokens:
            raise self._prompt_too_long(str(len(prompt)))

    def _prompt_too_long(self, tokens: str) -> Fault:
        return Fault(
            FailureKind.OVERLONG,
            f"task {self._task.id!r} has a prompt of {tokens} tokens, which must be in "
            f"1..{self._config.max_tokens - 1}; raise --rollout.max-tokens",
        )

    async def _act(self) -> FinishReason:
        """Let the policy speak once."""
        request = self._request()
        self._now.call("sample", _SAMPLER, self._config.sample_deadline_seconds)
        completion = await self._rollout.sample(request)
        sampled = len(completion.tokens)
        if not sampled:
            raise Fault(
                FailureKind.OVERLONG,
                f"{len(self._record)} tokens don't fit the sampler; "
                "raise --sampler.context-tokens",
            )
        if sampled > request.max_tokens:
            raise ValueError(f"{sampled} tokens were sampled, {request.max_tokens} asked for")
        self._record.act(completion, sample_seconds=self._now.seconds)
        self._now.returned()
        return completion.finish

    def _request(self) -> SampleRequest:
        room = self._config.max_tokens - len(self._record)
        return SampleRequest(  # by position: a class makes a dictionary of names
            self._record.tokens,
            min(self._config.max_turn_tokens, room),
            self._rollout.renderer.stop_ids,
            _sample_key(self._identity.key, self._record.samples),
            self._config.temperature,
            self._identity.priority,
            self._identity.version,
            self._config.sampling,
        )

    async def _answer(self, env: Env) -> tuple[StepResult, "_Reading | None"]:
        """Let the environment answer the turn sampled last.

        Returns:
          The answer, and its ids; None where the policy reads nothing more, or more than fits.
        """
        message = self._rollout.renderer.parse(self._record.last_turn_tokens)
        self._record.say([message])
        self._now.call("environment step", _ENV, self._config.env_deadline_seconds)
        result = checked_answer(await env.step(message))
        over = result.terminated or result.truncated
        read: _Reading | None = None
        if is_flood(result.messages, self._config.max_tokens):
            result = replace(result, messages=without_flood(result.messages))
        elif not over:
            read = self._render(result.messages)
        self._record.answered(result, env_seconds=self._now.returned())
        return result, read

    def _render(self, messages: Sequence[Message]) -> "_Reading":
        renderer, record = self._rollout.renderer, self._record
        rewritten = renderer.rewritten(record.tokens, [*record.messages, *messages])
        if rewritten is None:
            return _Reading(renderer.delta(messages))
        return _Reading(rewritten, begins_sample=True)

    def _observe(self, read: "_Reading | None") -> bool:
        """Append what the policy reads next; false if no token could be sampled after it."""
        if read is None:
            return False
        before = 0 if read.begins_sample else len(self._record)
        if before + len(read.ids) >= self._config.max_tokens:
            return False
        (self._record.begin_sample if read.begins_sample else self._record.observe)(read.ids)
        return True

    def _why_cut(self) -> StopReason:
        full = len(self._record) >= self._config.max_tokens
        return StopReason.MAX_TOKENS if full else StopReason.MAX_TURN_TOKENS

    def _finish(self, reason: StopReason) -> Trajectory:
        # What the environment said was checked at once, so only the sampler can be to blame.
        try:
            return self._record.finish(reason, seconds=self._now.until - self._began)
        except Exception as error:
            text = f"the sampler's answers: {describe(error)}"
            raise Fault(FailureKind.SAMPLER_ERROR, text) from error


class _Reading(NamedTuple):
    """What the policy reads next: after what it has read and said, or instead of it."""

    ids: list[int]
    begins_sample: bool = False


def _sample_key(key: tuple[int, int], sample: int) -> tuple[int, int]:
    """Return the random key of an episode's sample, counted from 1: law 18 for positions."""
    if sample == 1:
        return key
    digest = hashlib.blake2b(struct.pack("<2IQ", *key, sample), digest_size=8).digest()
    high, low = struct.unpack("<II", digest)
    return high, low
