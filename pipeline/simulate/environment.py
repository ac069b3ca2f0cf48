"""One simulated episode: an environment that answers late, and the few tokens that are said.

What a real chat carries in its words stands here in plain numbers: a message is
`"<tokens> <length of the next turn>"`, a prompt's begins with the episode's serial number. The
renderer makes ids of them: as many as it says, the serial number first, the length last. So the
simulated sampler reads from a request whose it is and how long the turn will be, and the
rollout code in between is the real one.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from ...envs.base import StepResult, Task
from ...envs.messages import Message
from ..types import Int32s, SampleRequest
from .episodes import Episode, EpisodeBook
from .timers import Timers
from .workload import Course, Workload

STOP_ID = 1
_FILL_ID = 0
_SHORTEST_PROMPT = 2  # tokens: the serial number and the length
_TURN = Message("assistant", "")
_END_BY_REWARD = {reward: StepResult(reward=reward, terminated=True) for reward in (0.0, 1.0)}


@dataclass(frozen=True)
class World:
    """What the environments of a run share."""

    workload: Workload
    timers: Timers
    book: EpisodeBook


def with_room(course: Course) -> Course:
    """Return the course with messages that have room for the numbers that they carry."""
    if course.prompt_tokens >= _SHORTEST_PROMPT and 0 not in course.observed_tokens:
        return course
    return course._replace(
        prompt_tokens=max(_SHORTEST_PROMPT, course.prompt_tokens),
        observed_tokens=[max(1, tokens) for tokens in course.observed_tokens],
    )


class SimulatedEnv:
    """The environment of one episode; a new one for each."""

    __slots__ = ("_course", "_episode", "_seed", "_turn", "_world")

    def __init__(self, world: World):
        self._world = world
        self._turn = 0

    async def __aenter__(self) -> "SimulatedEnv":
        self._episode: Episode = self._world.book.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._world.book.close(self._episode)

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Plan the whole episode; say how long the prompt and the first turn are."""
        world, self._seed = self._world, seed
        course = self._course = with_room(world.workload.script.course(task, seed))
        self._episode.course = course
        head = f"{self._episode.serial} {course.prompt_tokens} {course.sampled_tokens[0]}"
        return (Message("user", head),)

    async def step(self, message: Message) -> StepResult:
        """Answer after the turn's latency; the last answer ends the episode.

        Raises:
          OSError: at the end of an episode that the workload lets break.
        """
        course, episode, turn = self._course, self._episode, self._turn
        self._turn = following = turn + 1
        episode.waiting = True
        await self._world.timers.sleep(course.latency_seconds[turn])
        if following == len(course.latency_seconds):
            return self._end()
        episode.waiting = False
        answer = f"{course.observed_tokens[turn]} {course.sampled_tokens[following]}"
        return StepResult((Message("tool", answer),))

    def _end(self) -> StepResult:
        workload = self._world.workload
        if workload.breaks(self._seed):
            raise OSError("the simulated environment broke")
        self._episode.waiting = False
        return _END_BY_REWARD[workload.reward(self._seed)]


class CountingRenderer:
    """Makes ids of the numbers in a simulated environment's messages."""

    vocab_size = 2**31 - 1
    stop_ids = (STOP_ID,)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt's ids: the episode's serial number, filling, the next length."""
        serial, tokens, length = messages[0].content.split()
        return [int(serial), *[_FILL_ID] * (int(tokens) - 2), int(length)]

    def delta(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of an answer: filling, then the length of the next turn."""
        tokens, length = messages[0].content.split()
        return [*[_FILL_ID] * (int(tokens) - 1), int(length)]

    def rewritten(self, ids: Iterable[int], messages: Sequence[Message]) -> None:
        """Return None: nothing is rewritten."""

    def turn(self, message: Message) -> list[int]:
        """Return a turn of one token."""
        return [STOP_ID]

    def parse(self, ids: Sequence[int]) -> Message:
        """Return a message without words, whatever was sampled."""
        return _TURN

    def text(self, ids: Sequence[int]) -> str:
        """Return the ids in figures."""
        return " ".join(map(str, ids))


def announced_serial(tokens: Int32s) -> int:
    """Return the serial number of the episode whose tokens these are."""
    return tokens.item(0)


def announced_length(request: SampleRequest) -> int:
    """Return how many tokens the turn has, if the budget allows it."""
    return request.tokens.item(-1)


@dataclass
class NumberedTasks:
    """Tasks 0, 1, 2, … without end."""

    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def next(self) -> Task:
        """Return the next task."""
        return Task(str(next(self._numbers)))
