"""The records that travel through the pipeline. Frozen; plain NumPy; no JAX.

Arrays over tokens are aligned: index t is about token t. `loss_mask[t]` is true exactly if
token t was sampled by the policy, and exactly then it has a logprob and a policy version.
"""

import enum
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..envs.base import Task
from ..envs.messages import Message
from .sampling import PLAIN, Sampling

Int16s = NDArray[np.int16]
Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]
Bools = NDArray[np.bool_]

NO_VERSION = -1  # the policy version of a token that no policy sampled
NOT_RECORDED = -1  # in a record of experts: the router chooses anew
# As arrays, which compare twice as fast with another one as plain numbers do.
_NOT_SAMPLED = np.array(NO_VERSION, np.int32)
_NO_LOGPROB = np.array(0, np.float32)
_LARGEST_LOGPROB = np.array(1e-3, np.float32)  # above 0, since results are rounded


class StopReason(enum.StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"  # the environment said so: the task is over
    TRUNCATED = "truncated"  # the environment stopped early
    MAX_TURNS = "max_turns"  # the turn limit of the rollout
    MAX_TURN_TOKENS = "max_turn_tokens"  # a turn used up its budget without closing
    MAX_TOKENS = "max_tokens"  # the episode's token budget is used up


class FailureKind(enum.StrEnum):
    """What went wrong in an episode that has no outcome."""

    ENV_ERROR = "env_error"
    ENV_TIMEOUT = "env_timeout"
    SAMPLER_ERROR = "sampler_error"
    SAMPLER_TIMEOUT = "sampler_timeout"
    REWARD_ERROR = "reward_error"  # the episode couldn't be scored, which is no score of 0
    REWARD_TIMEOUT = "reward_timeout"
    OVERLONG = "overlong"  # the first prompt alone leaves no token to sample
    CANCELLED = "cancelled"


class FinishReason(enum.StrEnum):
    """Why the sampler ended one completion."""

    STOP = "stop"  # a stop id was sampled; it is the last token
    LENGTH = "length"  # the request's budget is used up
    PROMPT_TOO_LONG = "prompt_too_long"  # nothing was sampled


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """One turn asked of the sampler.

    Attributes:
      tokens: i32[n], all ids so far.
      max_tokens: at most so many are sampled.
      stop_ids: sampling one of these ends the turn; it is kept.
      key: two uint32, the trajectory's random key. The token at absolute position t is
        drawn with `fold_in(key, t)`: nothing else matters, neither rows nor neighbours.
      temperature: 0 takes the most likely token.
      priority: requests with smaller numbers are served first (the admission index).
      version: the policy version that samples all tokens, which must be held (`Sampler.hold`);
        None follows the newest one, also in the middle of the turn.
      sampling: cuts, penalties and the like; by default none.
    """

    tokens: Int32s
    max_tokens: int
    stop_ids: tuple[int, ...]
    key: tuple[int, int]
    temperature: float = 1.0
    priority: int = 0
    version: int | None = None
    sampling: Sampling = PLAIN


class TopLogprobs(NamedTuple):
    """The m most likely tokens at each of n sampled positions, the most likely one first.

    Attributes:
      ids: i32[n, m].
      logprobs: f32[n, m], of the same distribution as the completion's `logprobs`.
    """

    ids: Int32s
    logprobs: Float32s


@dataclass(frozen=True, eq=False)
class Completion:
    """What the sampler returns for one request; arrays have the same length n, but for `experts`.

    Attributes:
      tokens: i32[n], a sampled stop id included.
      logprobs: f32[n], of the temperature-scaled distribution (of the unscaled one
        for temperature 0), which the learner recomputes: nothing is cut, no penalty applied.
      policy_versions: i32[n], the version that sampled each token; non-decreasing.
      log_kept_mass: f32[n]. `logprobs - log_kept_mass` is the exact log probability with which
        the token was drawn, after cuts, penalties, bias and allowed ids; that is 0 for
        temperature 0. None stands for 0 everywhere.
      top_logprobs: the most likely tokens beside the drawn ones, where asked for.
      experts: i16[m, L, k], of a model with a mixture of experts which ones each token took, of
        the request's and the sampled ones together; `NOT_RECORDED` for the last, which nothing
        has read yet. None where that isn't recorded.
    """

    tokens: Int32s
    logprobs: Float32s
    policy_versions: Int32s
    finish: FinishReason
    log_kept_mass: Float32s | None = None
    top_logprobs: TopLogprobs | None = None
    experts: Int16s | None = None


Sample = Callable[[SampleRequest], Awaitable[Completion]]


@dataclass(frozen=True, slots=True)
class SamplerLoad:
    """How busy a sampler is, now.

    Attributes:
      rows: how many requests it serves at once.
      rows_busy: how many of the rows have a request.
      waiting: requests without a row.
      pages_free: share of the cache that is free, 0..1; 1 where rows are the only limit.
      preemptions: how often a request lost its row, or a trajectory its cache between two turns,
        to memory pressure, since the start.
    """

    rows: int
    rows_busy: int
    waiting: int
    pages_free: float = 1.0
    preemptions: int = 0


class Sampler(Protocol):
    """The engine that turns requests into completions, of the newest policy or a held one."""

    @property
    def policy_version(self) -> int:
        """The version published last."""
        ...

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one turn. Cancelling the call frees its row at the next dispatch."""
        ...

    async def publish(self, params: Any, version: int) -> None:
        """Swap the weights between two dispatches; returns when they are in use."""
        ...

    def hold(self, version: int) -> AbstractContextManager[None]:
        """Keep the weights of the newest version, or of one that is held, within the context."""
        ...

    def load(self) -> SamplerLoad:
        """Say how busy it is."""
        ...


class Turn(NamedTuple):
    """One turn of the policy inside a trajectory: tokens `start:end` were sampled.

    Attributes:
      sample_seconds: from the request to the completion, queueing included.
      env_seconds: how long the environment took to answer.
      reward: of the environment's answer; an episode's reward is the sum over its turns.
    """

    start: int
    end: int
    sample_seconds: float = 0.0
    env_seconds: float = 0.0
    reward: float = 0.0


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The token-exact record of one episode, or of a part of one.

    Where a chat format rewrites what was said, an episode goes on in a new sample, whose prompt
    is the rewritten conversation: then the trajectory is the last sample, with the others in
    `earlier`. All have the episode's reward.

    Attributes:
      tokens: i32[T].
      loss_mask: bool[T], true iff the token was sampled.
      rollout_logprobs: f32[T], 0 where nothing was sampled.
      policy_versions: i32[T], `NO_VERSION` where nothing was sampled; non-decreasing over
        sampled tokens.
      turns: the policy's turns, in order; their spans are the true runs of `loss_mask`. May
        be empty, where nobody asks for them.
      rewards: rewards by name, without weights; "env" is the environment's own.
      reward: their weighted sum, what training uses.
      info: the environment's last measurements.
      messages: for people; training uses the tokens.
      earlier: the episode's samples before this one, in order; they have none themselves.
      log_kept_mass: f32[T], as in `Completion`; None stands for 0 everywhere.
      experts: i16[T, L, k], as in `Completion`; `NOT_RECORDED` also for tokens that nothing has
        read in the sampler. None where that isn't recorded.
      oldest_version: the oldest policy version among the sampled tokens: the first one's.
      newest_version: the newest one: the last one's.

    Raises:
      ValueError: where lengths disagree, or the mask, logprobs, versions and turns do, or
        where a number isn't finite.
    """

    tokens: Int32s
    loss_mask: Bools
    rollout_logprobs: Float32s
    policy_versions: Int32s
    turns: tuple[Turn, ...]
    rewards: Mapping[str, float]
    reward: float
    stop_reason: StopReason
    info: Mapping[str, float] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    seconds: float = 0.0
    earlier: "tuple[Trajectory, ...]" = ()
    log_kept_mass: Float32s | None = None
    experts: Int16s | None = None
    oldest_version: int = field(init=False)
    newest_version: int = field(init=False)

    def __post_init__(self) -> None:
        self._check_lengths()
        if not math.isfinite(self.reward):
            raise ValueError(f"the reward of a trajectory must be finite, got {self.reward}")
        mask = self.loss_mask.tobytes()
        self._check_versions(mask)
        self._check_logprobs(mask)
        if self.log_kept_mass is not None and not np.isfinite(self.log_kept_mass).all():
            raise ValueError(f"log_kept_mass must be finite, got {self.log_kept_mass.tolist()}")
        if self.turns:
            self._check_turns(mask)
        if self.earlier:
            self._check_samples()

    # Every trajectory pays for these. To look for a byte takes a tenth of the time of `any`.

    def _check_lengths(self) -> None:
        length = len(self.tokens)
        more = self.log_kept_mass, self.experts
        for array in (self.loss_mask, self.rollout_logprobs, self.policy_versions, *more):
            if array is not None and len(array) != length:
                raise ValueError(
                    f"arrays of a trajectory differ in length: {len(array)} and {length}"
                )

    def _check_versions(self, mask: bytes) -> None:
        oldest = newest = NO_VERSION
        if 1 in mask:
            first, last = mask.find(1), mask.rfind(1)
            oldest, newest = self.policy_versions.item(first), self.policy_versions.item(last)
            if oldest < 0 or (first < last and self._versions_fall()):
                text = self.policy_versions[self.loss_mask].tolist()
                raise ValueError(f"policy versions must be >= 0 and non-decreasing, got {text}")
        if (self.policy_versions != _NOT_SAMPLED).tobytes() != mask:
            raise ValueError("a token that was not sampled has a policy version")
        first = self.earlier[0].oldest_version if self.earlier else oldest
        object.__setattr__(self, "oldest_version", first)
        object.__setattr__(self, "newest_version", newest)

    def _versions_fall(self) -> bool:
        versions = self.policy_versions[self.loss_mask]
        return True in (versions[1:] < versions[:-1]).tobytes()

    def _check_logprobs(self, mask: bytes) -> None:
        logprobs = self.rollout_logprobs
        present = logprobs != _NO_LOGPROB
        if present.tobytes() != mask and True in (present > self.loss_mask).tobytes():
            raise ValueError("a token that was not sampled has a logprob other than 0")
        good = (logprobs <= _LARGEST_LOGPROB).tobytes()  # false for NaN
        if False in good or False in np.isfinite(logprobs).tobytes():
            text = logprobs[self.loss_mask].tolist()
            raise ValueError(f"logprobs must be finite and <= 0, got {text}")

    def _check_turns(self, mask: bytes) -> None:
        before, sampled, whole = -1, 0, True
        for start, end, *_ in self.turns:
            if not before < start < end:
                raise ValueError(f"turns must be in order, with tokens between: {self.turns}")
            whole = whole and 0 not in mask[start:end]
            before, sampled = end, sampled + end - start
        if not whole or sampled != mask.count(1):
            raise ValueError(f"turns must span exactly the sampled tokens, got {self.turns}")

    def _check_samples(self) -> None:
        if any(sample.earlier for sample in self.earlier):
            raise ValueError("an earlier sample has earlier samples itself")
        for before, after in pairwise((*self.earlier, replace(self, earlier=()))):
            if before.newest_version > after.oldest_version:
                raise ValueError("the policy versions of an episode's samples must not fall")
            if before.reward != after.reward:
                raise ValueError(
                    "all samples of an episode must have its reward, got "
                    f"{before.reward} and {after.reward}"
                )

    @property
    def samples(self) -> "tuple[Trajectory, ...]":
        """All samples of the episode in order, this one last."""
        return (*self.earlier, self)


@dataclass(frozen=True, eq=False)
class EpisodeFailure:
    """An episode without an outcome. Never a reward of 0, never an exception that others see.

    Attributes:
      error: the exception as text, for people.
      partial: messages up to the failure.
    """

    kind: FailureKind
    error: str
    partial: tuple[Message, ...] = ()


Outcome = Trajectory | EpisodeFailure


@dataclass(frozen=True, eq=False)
class TrajectoryGroup:
    """The trajectories of one task, used as a whole or not at all.

    Attributes:
      index: the admission index, unique in a run.
      trajectories: `group_size` of them, fewer where survivors of failures are allowed.
    """

    index: int
    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def oldest_version(self) -> int:
        """W in the arithmetic: the oldest policy version in the group."""
        return min([trajectory.oldest_version for trajectory in self.trajectories])

    @property
    def newest_version(self) -> int:
        """The newest policy version in the group."""
        return max([trajectory.newest_version for trajectory in self.trajectories])


class TrainBatch(NamedTuple):
    """Packed rows for one update; a pytree of arrays. A microbatches, R rows, T tokens a row.

    A row holds whole trajectories one after the other. Only the first `microbatches` of the A
    are in use, so that batches of every size share one compiled program.

    Attributes:
      tokens: i32[A, R, T].
      segment_ids: i32[A, R, T], 1, 2, … for the trajectories of a row, 0 for padding.
      positions: i32[A, R, T], counted from 0 within each segment.
      loss_mask: bool[A, R, T].
      rollout_logprobs: f32[A, R, T], recorded while sampling, of the whole softmax.
      log_kept_mass: f32[A, R, T]; the exact log probability with which a token was drawn is
        `rollout_logprobs - log_kept_mass`.
      lags: i32[A, R, T], versions between the policy that sampled a token and the one that
        learns; 0 where none did.
      advantages: f32[A, R, T]; for supervised training the tokens' loss weights, with a critic
        the tokens' rewards.
      microbatches: i32[], how many of the A are in use.
      experts: i16[A, R, T, L, k], of a model with a mixture of experts those that the sampler
        took, `NOT_RECORDED` where the router shall choose; None lets it for all.
    """

    tokens: Any
    segment_ids: Any
    positions: Any
    loss_mask: Any
    rollout_logprobs: Any
    log_kept_mass: Any
    lags: Any
    advantages: Any
    microbatches: Any
    experts: Any = None
