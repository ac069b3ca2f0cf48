"""The groups and tasks that stand behind the ledger's indexes and ids."""

from collections import deque
from collections.abc import Iterable, Sequence

from ..envs.base import Task
from .errors import stage
from .rollout.episode import Rollout
from .rollout.group import Group
from .stages import Tasks
from .types import TrajectoryGroup


class Outstanding:
    """What was admitted and is neither in a batch nor dropped, and the tasks to give out again."""

    def __init__(self, rollout: Rollout, tasks: Tasks):
        self._rollout = rollout
        self._tasks = tasks
        self._groups: dict[int, Group] = {}
        self.ready: dict[int, TrajectoryGroup] = {}
        self.again: deque[tuple[Task, int]] = deque()

    def task(self, index: int) -> Task:
        """Return a group's task."""
        return self._groups[index].task

    def give_out(self, count: int) -> list[tuple[Task, int]]:
        """Return tasks, each with how often it was given out before; what comes again is first."""
        given = [self.again.popleft() for _ in range(min(count, len(self.again)))]
        with stage("prompts"):
            while len(given) < count:
                task = self._tasks.next()
                if not isinstance(task, Task):
                    raise TypeError(f"next must return a Task, got {task!r:.100}")
                given.append((task, 0))
        return given

    def start(self, task: Task, index: int, version: int | None) -> Group:
        """Make a group; see `Group`."""
        group = self._groups[index] = Group(self._rollout, task, index, version)
        return group

    def collect(self, index: int, members: Sequence[int]) -> None:
        """Keep the trajectories of these members for a batch."""
        self.ready[index] = self._groups[index].collect(members)

    def put_back(
        self, ready: Iterable[TrajectoryGroup], again: Iterable[tuple[Task, int]]
    ) -> None:
        """Take the groups that were ready before a restart, and the tasks to give out again."""
        for group in ready:
            self.start(group.task, group.index, None)
            self.ready[group.index] = group
        self.again.extend(again)

    def take(self, indexes: Sequence[int]) -> list[TrajectoryGroup]:
        """Give up groups that are ready, for a batch."""
        for index in indexes:
            del self._groups[index]
        return [self.ready.pop(index) for index in indexes]

    def drop(self, index: int, reason: str) -> Task:
        """Give up a group and stop what runs of it; return its task."""
        lost = self._groups.pop(index)
        lost.stop(reason)
        self.ready.pop(index, None)
        return lost.task

    def drop_all(self, reason: str) -> None:
        """Give up all groups."""
        for index in [*self._groups]:
            self.drop(index, reason)
