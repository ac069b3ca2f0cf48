"""What a controller needs to go on after a restart, and how it is written down.

It is taken between two events, with no batch under way. Nothing of a running group is kept but
its place: its members begin again, with the same random keys.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..envs.base import Task
from .groups.members import MemberRule
from .groups.saved import Store, group_from, group_table, ledger_from, ledger_table
from .groups.schedule import Schedule
from .groups.state import Ledger
from .rollout.config import RolloutConfig
from .types import TrajectoryGroup


@dataclass(frozen=True)
class ControllerState:
    """A controller at one moment.

    Attributes:
      running: the tasks of running groups, by index.
      ready: the groups that wait for a batch, by index.
      again: the tasks to give out before new ones, each with its attempt.
      held: the older versions that the sampler keeps and groups need, in order.
      budgets: see `Budgets.state`.
      ended: see `Flight.ended`.
    """

    ledger: Ledger
    running: Mapping[int, Task]
    ready: Mapping[int, TrajectoryGroup]
    again: tuple[tuple[Task, int], ...]
    held: tuple[int, ...]
    budgets: tuple[int, int, int]
    ended: Mapping[str, Any]

    def table(self) -> tuple[dict[str, Any], NDArray[np.uint8]]:
        """Return the state as JSON, and the groups that are ready as bytes.

        So who keeps the JSON for a whole run doesn't keep the groups.
        """
        store = Store()
        ready = json.dumps([group_table(group, store) for group in self.ready.values()])
        table = {
            "ledger": ledger_table(self.ledger),
            "ready": store.put(np.frombuffer(ready.encode(), np.uint8)),
            "again": [[task.id, attempt] for task, attempt in self.again],
            "held": list(self.held),
            "budgets": list(self.budgets),
            "ended": dict(self.ended),
        }
        return table, store.all_bytes()


def state_from(
    table: Mapping[str, Any],
    content: NDArray[np.uint8],
    *,
    schedule: Schedule,
    rollout: RolloutConfig,
    find: Callable[[str], Task],
) -> ControllerState:
    """Make a state again.

    Args:
      content: the bytes of the groups that are ready.
      find: gives the task of an id.
    """
    ledger = ledger_from(table["ledger"], schedule, member_rule(rollout))
    store = Store(content)
    tables = json.loads(store.get(table["ready"]).tobytes())
    ready = [group_from(group, store, find) for group in tables]
    return ControllerState(
        ledger=ledger,
        running={group.index: find(group.task_id) for group in ledger.running},
        ready={group.index: group for group in ready},
        again=tuple((find(task_id), attempt) for task_id, attempt in table["again"]),
        held=tuple(table["held"]),
        budgets=tuple(table["budgets"]),
        ended=table["ended"],
    )


def member_rule(config: RolloutConfig) -> MemberRule:
    """Return the rule by which the ledger judges a group's members."""
    return MemberRule(config.group_size, config.failure, config.max_retries, config.min_group_size)


@dataclass(frozen=True)
class Saves:
    """When and how a controller's state is saved.

    Attributes:
      every: updates between two saves; another is made at the end.
      save: is given the state; until it returns nothing is learnt or published, and the held
        versions are there. Before its first await nothing has happened since.
    """

    every: int
    save: Callable[[ControllerState], Awaitable[None]]
