"""Builds the token-exact record of an episode. Append-only: samples of tokens, mostly one.

Law 1 (prefix): the ids of request k+1 begin with the ids of request k and its completion, in each
sample; a new one begins only where the chat format has rewritten what was said.
Law 2 (mask): a token is masked in iff the sampler returned it, and exactly then it has a
logprob and a version. Both hold because nothing here ever decodes, edits or removes an id.
"""

from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from ...envs.base import StepResult
from ...envs.messages import Message
from ..types import (
    NO_VERSION,
    NOT_RECORDED,
    Completion,
    Float32s,
    Int16s,
    Int32s,
    StopReason,
    Trajectory,
    Turn,
)

# What all samples of an episode end with: rewards, reward, stop reason, info.
_End = tuple[Mapping[str, float], float, StopReason, Mapping[str, float]]
_NOT_SAMPLED = np.int32(NO_VERSION).tobytes()
_NO_VERSION = np.array(NO_VERSION, np.int32)  # compares twice as fast as a plain number
_INT32, _FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)  # looked up once


class TrajectoryBuilder:
    """Collects one episode's tokens and messages as they come.

    Example:
      >>> builder = TrajectoryBuilder([7, 8])
      >>> builder.tokens
      array([7, 8], dtype=int32)
    """

    __slots__ = ("_earlier", "_info", "_messages", "_reward", "_sample")

    def __init__(self, prompt: Sequence[int]):
        self._sample = _Sample(prompt)
        self._earlier: list[_Sample] = []
        self._messages: list[Message] = []
        self._reward = 0.0
        self._info: Mapping[str, float] = {}

    def __len__(self) -> int:
        return len(self._sample.tokens)

    @property
    def tokens(self) -> Int32s:
        """All ids of the present sample so far, i32[T]: the next request's prompt."""
        return np.frombuffer(self._sample.tokens.tobytes(), _INT32)

    @property
    def samples(self) -> int:
        """How many samples there are, the present one included."""
        return len(self._earlier) + 1

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far, for people."""
        return tuple(self._messages)

    @property
    def last_turn_tokens(self) -> list[int]:
        """The ids of the turn sampled last."""
        turn = self._sample.turns[-1]
        return self._sample.tokens[turn.start : turn.end].tolist()

    def say(self, messages: Sequence[Message]) -> None:
        """Note messages for people; their ids are appended by `observe`."""
        self._messages.extend(messages)

    def observe(self, ids: Sequence[int]) -> None:
        """Append ids that the policy reads but did not sample."""
        self._sample.observe(ids)

    def begin_sample(self, prompt: Sequence[int]) -> None:
        """Go on with a new sample: what was said stays as it is, and the policy reads `prompt`."""
        self._earlier.append(self._sample)
        self._sample = _Sample(prompt)

    def act(self, completion: Completion, *, sample_seconds: float) -> None:
        """Append what the policy sampled, verbatim."""
        self._sample.act(completion, sample_seconds)

    def answered(self, result: StepResult, *, env_seconds: float) -> None:
        """Note the environment's answer to the turn appended last: reward, messages, info."""
        turns = self._sample.turns
        start, end, sample_seconds, _, _ = turns[-1]
        turns[-1] = Turn(start, end, sample_seconds, env_seconds, float(result.reward))
        self._reward += result.reward
        self._info = dict(result.info)
        self._messages.extend(result.messages)

    def finish(self, stop_reason: StopReason, *, seconds: float) -> Trajectory:
        """Freeze the record; its info is that of the last answer."""
        end = {"env": self._reward}, self._reward, stop_reason, self._info
        earlier = tuple([sample.freeze(end) for sample in self._earlier]) if self._earlier else ()
        return self._sample.freeze(end, self.messages, seconds, earlier)


class _Sample:
    """The tokens of one sample. Append-only."""

    # Bytes of 4-byte numbers, which NumPy takes as they are: each turn asks for all ids so far.
    __slots__ = ("experts", "log_kept_mass", "logprobs", "tokens", "turns", "versions")

    def __init__(self, prompt: Sequence[int]):
        self.tokens = array("i", prompt)
        self.logprobs = bytearray(4 * len(prompt))
        self.versions = bytearray(_NOT_SAMPLED * len(prompt))
        self.turns: list[Turn] = []
        self.log_kept_mass: dict[int, Float32s] = {}  # by start of turn, where it isn't 0
        self.experts: Int16s | None = None  # the newest record: it is about all tokens before

    def observe(self, ids: Sequence[int]) -> None:
        self.tokens.fromlist(list(ids))  # several times faster than extend
        self.logprobs += bytes(4 * len(ids))
        self.versions += _NOT_SAMPLED * len(ids)

    def act(self, completion: Completion, sample_seconds: float) -> None:
        start = len(self.tokens)
        self.tokens.frombytes(completion.tokens.astype(_INT32, copy=False).tobytes())
        self.logprobs += completion.logprobs.astype(_FLOAT32, copy=False).tobytes()
        self.versions += completion.policy_versions.astype(_INT32, copy=False).tobytes()
        self.turns.append(Turn(start, len(self.tokens), sample_seconds))
        if completion.log_kept_mass is not None:
            self.log_kept_mass[start] = completion.log_kept_mass
        if completion.experts is not None:
            self.experts = completion.experts

    def freeze(
        self,
        end: _End,
        messages: tuple[Message, ...] = (),
        seconds: float = 0.0,
        earlier: tuple[Trajectory, ...] = (),
    ) -> Trajectory:
        versions = np.frombuffer(bytes(self.versions), _INT32)
        return Trajectory(  # by position, as that many names take a microsecond
            np.frombuffer(self.tokens.tobytes(), _INT32),
            versions != _NO_VERSION,
            np.frombuffer(bytes(self.logprobs), _FLOAT32),
            versions,
            tuple(self.turns),
            *end,
            messages,
            seconds,
            earlier,
            self._whole_log_kept_mass() if self.log_kept_mass else None,
            None if self.experts is None else self._whole_experts(self.experts),
        )

    def _whole_log_kept_mass(self) -> Float32s:
        whole = np.zeros(len(self.tokens), np.float32)
        for start, part in self.log_kept_mass.items():
            whole[start : start + len(part)] = part
        return whole

    def _whole_experts(self, experts: Int16s) -> Int16s:
        whole = np.full((len(self.tokens), *experts.shape[1:]), NOT_RECORDED, np.int16)
        whole[: len(experts)] = experts
        return whole
