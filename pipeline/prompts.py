"""Tasks in a shuffled, endless stream whose position can be saved and restored exactly.

Each task comes exactly once an epoch; each epoch has its own order, decided by the seed. The
stream is a cursor into a Grain `MapDataset`, which finds any index at once: no iterator, no
thread, no buffer that a restart could lose. Grain takes over a second to import and imports
JAX, so that is done when the first stream is made.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from ..envs.base import Task
from .errors import ConfigError, check


@dataclass(frozen=True)
class PromptsConfig:
    """Where the training tasks come from, and in which order."""

    path: str | None = None
    """A JSONL file of tasks, one {"id": ..., ...} a line; default: the environment's own."""
    num_tasks: int = 4096
    """How many tasks to ask of the environment, >= 1; without effect on a file."""
    shuffle: bool = True
    """A new order each epoch; otherwise the given order, every time."""

    def __post_init__(self) -> None:
        check(self.num_tasks >= 1, "prompts.num_tasks", self.num_tasks, ">= 1")


class _Indexed(Protocol):
    def __getitem__(self, index: int, /) -> Any: ...


class Cursor:
    """A position in an endless stream of items: one number, which is saved and restored exactly.

    Each item comes once an epoch; each epoch has its own order, decided by the seed.
    """

    def __init__(
        self,
        items: Any,
        *,
        seed: int,
        shuffle: bool,
        identity: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Start at the first item of epoch 0.

        Args:
          items: any length and `[index]`, not empty.
          seed: any integer; decides the order.
          shuffle: whether the order differs from that of the items, and by epoch.
          identity: what else tells these items from others, JSON-serialisable.
        """
        self._size = len(items)
        self._dataset: _Indexed = endless(items, seed=seed, shuffle=shuffle)
        self._identity = {"size": self._size, **identity, "seed": seed, "shuffle": shuffle}
        self._position = 0

    @property
    def epochs(self) -> float:
        """How often the stream has passed over all items."""
        return self._position / self._size

    def take(self, count: int) -> list[Any]:
        """Return the next items and move on, unless one can't be read."""
        items = [self._dataset[self._position + number] for number in range(count)]
        self._position += count
        return items

    def state(self) -> dict[str, Any]:
        """Return the position, JSON-serialisable; `take` after `restore` continues from it."""
        return {"cursor": self._position, **self._identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position: exactly the same items follow.

        Raises:
          ConfigError: if the items, the seed or the order are not those of the saved stream.
        """
        for name, value in self._identity.items():
            if state.get(name) != value:
                raise ConfigError(
                    f"the saved position belongs to other data: {name} was {state.get(name)}, is "
                    f"{value}; resume with the same data, --run.seed and order"
                )
        self._position = state["cursor"]


class TaskStream:
    """An endless stream of tasks.

    A task's id gets the epoch appended, `"sum-3#0"`, `"sum-3#1"`, since the last tasks of an
    epoch may still be running when the next one begins.

    Example:
      >>> stream = TaskStream([Task("a"), Task("b")], seed=0, shuffle=False)
      >>> [stream.next().id for _ in range(3)]
      ['a#0', 'b#0', 'a#1']
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int, shuffle: bool = True) -> None:
        """Start at the first task of epoch 0.

        Args:
          tasks: at least one, with unique ids.
          seed: any integer; decides the order.
          shuffle: whether the order differs from that of `tasks`, and by epoch.

        Raises:
          ConfigError: for no tasks, a repeated id, or what is no sequence of tasks.
        """
        check_tasks(tasks)
        ids = [task.id for task in tasks]
        _check_ids(ids)
        self._tasks = tasks
        identity = {"checksum": zlib.crc32(json.dumps(ids).encode())}
        self._cursor = Cursor(tasks, seed=seed, shuffle=shuffle, identity=identity)

    def next(self) -> Task:
        """Return the next task and move on; 0.1 ms, and some milliseconds for ten tasks or so.

        Grain shuffles within 2**16 indexes and steps over those beyond the tasks.
        """
        epoch = int(self._cursor.epochs)
        task: Task = self._cursor.take(1)[0]
        return replace(task, id=f"{task.id}#{epoch}")

    def find(self, task_id: str) -> Task:
        """Return the task that `next` has given, or will give, under this id."""
        name, _, _ = task_id.rpartition("#")
        return replace(self._by_id[name], id=task_id)

    @cached_property
    def _by_id(self) -> Mapping[str, Task]:
        return {task.id: task for task in self._tasks}

    def state(self) -> dict[str, Any]:
        """Return the position; see `Cursor.state`."""
        return self._cursor.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position: exactly the same tasks follow; see `Cursor.restore`."""
        self._cursor.restore(state)


def load_tasks(config: PromptsConfig, make: Callable[[int], Sequence[Task]]) -> Sequence[Task]:
    """Return the tasks of the config's file, or `make(config.num_tasks)` if it names none.

    Raises:
      ConfigError: see `read_tasks`.
    """
    return make(config.num_tasks) if config.path is None else read_tasks(config.path)


def check_tasks(tasks: Sequence[Task]) -> Sequence[Task]:
    """Return the tasks if they are what a user's function must return.

    Raises:
      ConfigError: for anything but a sequence of `Task`.
    """
    strange: list[object] = [tasks]
    if isinstance(tasks, Sequence):
        strange = [task for task in tasks if not isinstance(task, Task)]
    if strange:
        raise ConfigError(
            f"an environment's tasks must be a sequence of Task, found {strange[0]!r:.80}; "
            "return a list of Task from its tasks function"
        )
    return tasks


def read_tasks(path: str | Path) -> tuple[Task, ...]:
    """Read tasks from a JSONL file: one object with an `id` a line; blank lines are skipped.

    The id is a non-empty string or an integer; all other keys become the task's data.

    Raises:
      ConfigError: with file and line, for a missing, unreadable or empty file, a line that is
        not such an object, or a repeated id.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot read the tasks: {why}; set --prompts.path") from error
    numbered = [(f"{path}:{number}", line) for number, line in enumerate(lines, start=1)]
    tasks = [(where, _parse(where, line)) for where, line in numbered if line.strip()]
    if not tasks:
        raise ConfigError(f'{path}: no tasks; write one {{"id": ..., ...}} a line')
    _check_repeats((where, task.id) for where, task in tasks)
    return tuple(task for _, task in tasks)


def _parse(where: str, line: bytes) -> Task:
    try:
        record = json.loads(line.decode("utf-8"))
    except ValueError as error:  # of the encoding or of the JSON
        raise ConfigError(f"{where}: not a JSON object: {error}") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: a task must be a JSON object, got {record!r:.80}")
    if "id" not in record:
        raise ConfigError(f'{where}: a task needs an "id", got the keys {sorted(record)}')
    task_id = record.pop("id")
    if isinstance(task_id, bool) or not isinstance(task_id, str | int) or task_id == "":
        raise ConfigError(
            f"{where}: an id must be a non-empty string or an integer, got {task_id!r:.80}"
        )
    return Task(str(task_id), record)


def _check_ids(ids: Sequence[str]) -> None:
    if not ids:
        raise ConfigError("no tasks to train on, at least 1 is needed; set --prompts.path")
    _check_repeats((f"task {number}", task_id) for number, task_id in enumerate(ids))


def _check_repeats(ids: Iterable[tuple[str, str]]) -> None:
    first: dict[str, str] = {}
    for where, task_id in ids:
        if task_id in first:
            raise ConfigError(
                f"{where}: the id {task_id!r} is already that of {first[task_id]}; make the "
                "ids unique"
            )
        first[task_id] = where


def endless(items: Any, *, seed: int, shuffle: bool) -> Any:
    """Return a Grain dataset that repeats items for ever, shuffled anew each epoch.

    Args:
      items: any length and `[index]`, not empty.
      seed: any integer.

    Returns:
      What gives an item for every index >= 0.
    """
    import grain  # noqa: PLC0415 - slow, see the docstring of the module

    dataset: Any = grain.MapDataset.source(items)
    if shuffle:
        # Grain shuffles epoch e with seed + e: neighbouring seeds must not share orders.
        dataset = dataset.shuffle(seed=zlib.crc32(f"task order {seed}".encode()))
    return dataset.repeat()
