"""Games of TextArena; the policy is player 0.

Invariant: the game's messages arrive once each, without the policy's own; the task's seed decides
all chance of the game. TextArena seeds the random numbers of the whole process, so games belong
into processes of their own: `in_processes`, never `in_threads`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import textarena

from ..base import StepResult, Task
from ..messages import Message
from ..spec import EnvSpec
from .seeded import seeded_spec


class TextArenaEnv:
    """A `SyncEnv` of one game, for `in_processes`. Tasks are `Task(id, {"seed": number})`.

    The reward is the game's, given when it is over: often 1 for a win and -1 for a loss, for games
    of one player often 0 to 1. `success` is a reward of 1.
    """

    def __init__(
        self,
        game: str,
        *,
        players: int = 1,
        opponent: Callable[[str], str] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Args:
        game: an id of TextArena, for example "GuessTheNumber-v0".
        opponent: what another player says to what is new for it.
        settings: of the game, other than its id sets.
        """
        if players > 1 and opponent is None:
            raise ValueError(f"{game} of {players} players needs an opponent, got None")
        self._game = game
        self._players = players
        self._opponent = opponent
        self._settings = settings or {}

    def __enter__(self) -> Self:
        self._env = textarena.make(self._game, **self._settings)
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Start the game of the task's seed; the member's `seed` isn't used."""
        self._env.reset(num_players=self._players, seed=task.data["seed"])
        self._play_others(done=False)
        return [Message("user", self._news())]

    def step(self, message: Message) -> StepResult:
        """Say the policy's turn, and let the others have theirs."""
        done, _ = self._env.step(action=message.content)
        if not self._play_others(done=done):
            return StepResult((Message("user", self._news()),))
        rewards, _ = self._env.close()
        reward = float(rewards[0])
        info = {"success": float(reward == 1)}
        return StepResult(reward=reward, terminated=True, info=info)

    def _play_others(self, *, done: bool) -> bool:
        while not done and self._env.state.current_player_id != 0:
            assert self._opponent is not None, "checked by __init__"
            done, _ = self._env.step(action=self._opponent(self._news()))
        return bool(done)

    def _news(self) -> str:
        """What the player whose turn it is hasn't read yet."""
        state = self._env.state
        own = state.current_player_id
        news = state.get_current_player_observation()
        return "\n".join(text for sender, text, _ in news if sender != own)


def spec(game: str, **options: Any) -> EnvSpec:
    """Return the `EnvSpec` of a game; options as of `TextArenaEnv`."""
    if game not in textarena.envs.registration.ENV_REGISTRY:
        raise ValueError(f"TextArena has no game {game!r}")
    return seeded_spec(partial(TextArenaEnv, game, **options), game)
