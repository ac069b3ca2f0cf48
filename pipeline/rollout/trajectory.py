"""Builds the token-exact record of an episode. Append-only.

Law 1 (prefix): the ids of request k+1 begin with the ids of request k and its completion.
Law 2 (mask): a token is masked in iff the sampler returned it, and exactly then it has a
logprob and a version. Both hold because nothing here ever decodes, edits or removes an id.
"""

from array import array
from collections.abc import Sequence

import numpy as np

from ...envs.base import StepResult
from ...envs.messages import Message
from ..types import (
    NO_VERSION,
    Completion,
    Int32s,
    StopReason,
    Trajectory,
    Turn,
)


class TrajectoryBuilder:
    """Collects one episode's tokens and messages as they come.

    Example:
      >>> builder = TrajectoryBuilder([7, 8])
      >>> builder.tokens
      array([7, 8], dtype=int32)
    """

    # Arrays of 4-byte numbers, which NumPy copies as a whole: each turn asks for all ids so far.

    def __init__(self, prompt: Sequence[int]):
        self._tokens = array("i", prompt)
        self._logprobs = array("f", bytes(4 * len(prompt)))
        self._versions = array("i", [NO_VERSION]) * len(prompt)
        self._turns: list[Turn] = []
        self._messages: list[Message] = []
        self._reward = 0.0
        self._info: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Int32s:
        """All ids so far, i32[T]: the next request's prompt."""
        return np.frombuffer(self._tokens.tobytes(), np.int32)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far, for people."""
        return tuple(self._messages)

    @property
    def last_turn_tokens(self) -> list[int]:
        """The ids of the turn sampled last."""
        return self._tokens[self._turns[-1].start : self._turns[-1].end].tolist()

    def say(self, messages: Sequence[Message]) -> None:
        """Note messages for people; their ids are appended by `observe`."""
        self._messages.extend(messages)

    def observe(self, ids: Sequence[int]) -> None:
        """Append ids that the policy reads but did not sample."""
        self._tokens.fromlist(list(ids))  # several times faster than extend
        self._logprobs.frombytes(bytes(4 * len(ids)))
        self._versions.extend(array("i", [NO_VERSION]) * len(ids))

    def act(self, completion: Completion, *, sample_seconds: float) -> None:
        """Append what the policy sampled, verbatim."""
        start = len(self._tokens)
        self._tokens.frombytes(completion.tokens.astype(np.int32, copy=False).tobytes())
        self._logprobs.frombytes(completion.logprobs.astype(np.float32, copy=False).tobytes())
        self._versions.frombytes(completion.policy_versions.astype(np.int32, copy=False).tobytes())
        self._turns.append(Turn(start, len(self._tokens), sample_seconds))

    def answered(self, result: StepResult, *, env_seconds: float) -> None:
        """Note the environment's answer to the turn appended last: reward, messages, info."""
        turn = self._turns[-1]
        self._turns[-1] = Turn(turn.start, turn.end, turn.sample_seconds, env_seconds)
        self._reward += float(result.reward)
        self._info = dict(result.info)
        self.say(result.messages)

    def finish(self, stop_reason: StopReason, *, seconds: float) -> Trajectory:
        """Freeze the record; its info is that of the last answer."""
        versions = np.frombuffer(self._versions.tobytes(), np.int32)
        return Trajectory(
            tokens=self.tokens,
            loss_mask=versions != NO_VERSION,
            rollout_logprobs=np.frombuffer(self._logprobs.tobytes(), np.float32),
            policy_versions=versions,
            turns=tuple(self._turns),
            rewards={"env": self._reward},
            reward=self._reward,
            stop_reason=stop_reason,
            info=self._info,
            messages=self.messages,
            seconds=seconds,
        )
