"""A ledger and its groups as a checkpoint holds them, and back.

Plain JSON, but for the arrays of trajectories, which stand one behind the other as bytes. What
comes back is what was put in, bit for bit, with two exceptions: of running groups the members
begin again (`Resumed`), and the calls of a message have no arguments, which nothing reads once an
episode has ended.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...envs.base import Task
from ...envs.messages import Message, ToolCall
from ..types import StopReason, Trajectory, TrajectoryGroup, Turn
from .events import MemberDone
from .members import ENDED, MemberRule, Members
from .schedule import Schedule
from .state import Group, Ledger

_COUNTS = (
    "admitted",
    "committed",
    "published",
    "consumed",
    "dropped",
    "reissued",
    "ignored",
    "lag_sum",
    "lag_max",
)
_PLAIN = ("rewards", "reward", "stop_reason", "info", "seconds")
_ARRAYS = (
    "tokens",
    "loss_mask",
    "rollout_logprobs",
    "policy_versions",
    "log_kept_mass",
    "experts",
)


class Store:
    """Arrays as bytes, one behind the other.

    Example:
      >>> store = Store()
      >>> place = store.put(np.arange(3, dtype=np.int32))
      >>> Store(store.all_bytes()).get(place)
      array([0, 1, 2], dtype=int32)
    """

    def __init__(self, content: NDArray[np.uint8] | None = None) -> None:
        """Begin with what another store had."""
        self._content = np.zeros(0, np.uint8) if content is None else content
        self._more: list[NDArray[np.uint8]] = []
        self._size = len(self._content)

    def put(self, array: NDArray[Any] | None) -> list[Any] | None:
        """Add an array; return where it is, as JSON."""
        if array is None:
            return None
        place = [array.dtype.str, list(array.shape), self._size]
        self._more.append(np.frombuffer(array.tobytes(), np.uint8))
        self._size += array.nbytes
        return place

    def get(self, place: Sequence[Any] | None) -> Any:
        """Return a copy of an array that the store began with."""
        if place is None:
            return None
        name, shape, start = place
        dtype = np.dtype(name)
        end = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self._content[start:end].tobytes(), dtype).reshape(shape).copy()

    def all_bytes(self) -> NDArray[np.uint8]:
        """Return all that there is."""
        return np.concatenate([self._content, *self._more])


# The ledger --------------------------------------------------------------------------------


def ledger_table(ledger: Ledger) -> dict[str, Any]:
    """Describe a ledger between two batches, without its schedule and rule."""
    if ledger.in_batch or ledger.ended:
        raise ValueError(
            f"a ledger is saved while the run goes on and no batch is under way, got "
            f"{len(ledger.in_batch)} batches, ended: {ledger.ended}"
        )
    return {
        "counts": {name: getattr(ledger, name) for name in _COUNTS},
        "running": [list(group[:4]) for group in ledger.running],
        "ready": [
            [list(group[:4]), [list(done) for done in group.members.done], group.members.lost]
            for group in ledger.ready
        ],
    }


def ledger_from(table: Mapping[str, Any], schedule: Schedule, rule: MemberRule) -> Ledger:
    """Make the ledger again, to be told of `Resumed`."""
    ledger = Ledger(schedule, rule, **table["counts"])
    running = ledger.running
    for fields in table["running"]:
        group = _group(fields, rule.start)
        running = running.add(group.index, group)
    ready = []
    for fields, done, lost in table["ready"]:
        ended = tuple(MemberDone(*event) for event in done)
        ready.append(_group(fields, Members((ENDED,) * rule.size, ended, lost)))
    return ledger.with_groups(ledger.admitted, running, tuple(ready))


def _group(fields: Sequence[Any], members: Members) -> Group:
    version, index, task_id, attempt = fields
    return Group(version, index, task_id, attempt, members)


# Groups that are ready ---------------------------------------------------------------------


def group_table(group: TrajectoryGroup, store: Store) -> dict[str, Any]:
    """Describe a group; its arrays go to the store."""
    return {
        "index": group.index,
        "task": group.task.id,
        "trajectories": [_trajectory_table(each, store) for each in group.trajectories],
    }


def group_from(
    table: Mapping[str, Any], store: Store, find: Callable[[str], Task]
) -> TrajectoryGroup:
    """Make the group again.

    Args:
      find: gives the task of an id.
    """
    trajectories = tuple(_trajectory_from(each, store) for each in table["trajectories"])
    return TrajectoryGroup(table["index"], find(table["task"]), trajectories)


def _trajectory_table(trajectory: Trajectory, store: Store) -> dict[str, Any]:
    return {
        **{name: getattr(trajectory, name) for name in _PLAIN},
        "arrays": {name: store.put(getattr(trajectory, name)) for name in _ARRAYS},
        "turns": [list(turn) for turn in trajectory.turns],
        "messages": [_message_table(message) for message in trajectory.messages],
        "earlier": [_trajectory_table(sample, store) for sample in trajectory.earlier],
    }


def _trajectory_from(table: Mapping[str, Any], store: Store) -> Trajectory:
    plain = {name: table[name] for name in _PLAIN}
    return Trajectory(
        **{name: store.get(place) for name, place in table["arrays"].items()},
        **{**plain, "stop_reason": StopReason(table["stop_reason"])},
        turns=tuple(Turn(*turn) for turn in table["turns"]),
        messages=tuple(_message_from(message) for message in table["messages"]),
        earlier=tuple(_trajectory_from(sample, store) for sample in table["earlier"]),
    )


def _message_table(message: Message) -> dict[str, Any]:
    calls = [{**vars(call), "arguments": {}} for call in message.tool_calls]
    return {**vars(message), "tool_calls": calls}


def _message_from(table: Mapping[str, Any]) -> Message:
    calls = [
        ToolCall(**{**call, "token_span": call["token_span"] and tuple(call["token_span"])})
        for call in table["tool_calls"]
    ]
    return Message(**{**table, "tool_calls": tuple(calls)})
