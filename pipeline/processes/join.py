"""How the processes of a run find each other: JAX joins them, and each connects to process 0.

Every process is started with the same command but for its number.
"""

import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, field

import jax
import numpy as np
import trio
from jax.experimental import multihost_utils

from ..errors import ConfigError, HeadraceError, StageFailed, check, describe, innermost, stage
from .calls import Calls
from .channel import GONE_SECONDS, Follower, Leader, ProcessGone

JOIN_SECONDS = 300  # for all to be started
_NAME_IT = "name it: --mesh.coordinator HOST:PORT, --mesh.processes, --mesh.process"
_ADDRESS_BYTES = 256
_PASSWORD_BYTES = 32
_NOTICE_SECONDS = 1.0  # until the end of a follower is known, where its devices failed first
_PART_SECONDS = 2 * GONE_SECONDS  # for all others to end


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them.

    Attributes:
      index: its number; 0 decides.
      count: how many there are.
      calls: the functions that all call alike.
      leader: of process 0, where there are others.
      follower: of the others.
    """

    index: int = 0
    count: int = 1
    calls: Calls = field(default_factory=Calls)
    leader: Leader | None = None
    follower: Follower | None = None

    async def watch(self) -> None:
        """Wait until a follower ends before this process does.

        Raises:
          StageFailed: then, with a `ProcessGone` as its cause.
        """
        leader = self.leader
        if leader is not None:
            await trio.to_thread.run_sync(leader.first_end, abandon_on_cancel=True)
            self._check_all_there()

    def end(self) -> None:
        """Part from the others after a run that has ended in order, once nothing is called."""
        if self.leader is not None:
            with suppress(ProcessGone):  # it ends all the same
                self.calls.end()
            self.leader.hang_up(_PART_SECONDS)
        if self.follower is not None:
            self.follower.let_go()

    def fail(self, error: BaseException) -> BaseException:
        """Let the others end too, after an error.

        Returns:
          What is to be told: in process 0, the end of a follower that came before, since what
          fails here is then what waited for that one.
        """
        if self.follower is not None:
            news = innermost(error)
            text = str(news) if isinstance(news, HeadraceError) else describe(news)
            self.follower.give_reason(text)
            self.follower.let_go()
        if self.leader is None:
            return error
        try:
            self._check_all_there(_NOTICE_SECONDS)
        except StageFailed as gone:
            error = gone
        self.leader.hang_up(_PART_SECONDS)
        return error

    def _check_all_there(self, seconds: float = 0.0) -> None:
        assert self.leader is not None, "process 0 has the others"
        ended = self.leader.first_end(seconds)
        if ended is not None:
            number, why = ended
            with stage(f"process {number}"):
                raise ProcessGone(why or "it ended without a word; see what it printed")


def join(coordinator: str | None, processes: int, process: int) -> Processes:
    """Join the other processes; call it before JAX is used.

    Args:
      coordinator: HOST:PORT of process 0, where JAX's coordinator will listen; `auto` lets JAX
        find all three out, as on TPU pods; None: there are no others.

    Raises:
      ConfigError: where they don't find each other.
    """
    if coordinator is None:
        return Processes()
    # On CPUs programs would overlap, and the parts of their sums that come from other processes
    # are told apart by their order only. Elsewhere each device has one queue.
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]
    auto = coordinator == "auto"
    if not auto:
        _check(coordinator, processes, process)
    try:
        jax.distributed.initialize(
            coordinator_address=None if auto else coordinator,
            num_processes=None if auto else processes,
            process_id=None if auto else process,
            initialization_timeout=JOIN_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        who = "JAX" if auto else f"process {process} of {processes}"
        hint = _NAME_IT if auto else "start all within minutes, with one address"
        raise ConfigError(f"{who} finds no others at {coordinator!r}: {error}; {hint}") from error
    index, count = jax.process_index(), jax.process_count()
    if count == 1:
        return Processes()
    host = socket.gethostbyname(socket.gethostname()) if auto else coordinator.rpartition(":")[0]
    return _lead(host, count) if index == 0 else _follow(index, count)


def _check(coordinator: str, processes: int, process: int) -> None:
    _, colon, port = coordinator.rpartition(":")
    fits = bool(colon) and port.isdecimal()
    check(fits, "mesh.coordinator", coordinator, "HOST:PORT of process 0, or auto")
    hint = "set --mesh.processes, or --mesh.coordinator auto"
    check(processes >= 2, "mesh.processes", processes, ">= 2 with a coordinator", hint=hint)
    check(0 <= process < processes, "mesh.process", process, f"in 0..{processes - 1}")


def _lead(host: str, count: int) -> Processes:
    password = secrets.token_bytes(_PASSWORD_BYTES)
    leader = Leader(count - 1, password)
    text = password + f"{host} {leader.port}".encode()
    _broadcast(text)
    leader.accept()
    return Processes(0, count, Calls(tell=leader.tell), leader=leader)


def _follow(index: int, count: int) -> Processes:
    text = _broadcast(b"")
    password, address = text[:_PASSWORD_BYTES], text[_PASSWORD_BYTES:].decode()
    host, port = address.split()
    follower = Follower(host, int(port), number=index, password=password)
    return Processes(index, count, Calls(hear=follower.hear), follower=follower)


def _broadcast(text: bytes) -> bytes:
    """Give every process what process 0 has."""
    check(len(text) <= _ADDRESS_BYTES, "mesh.coordinator", text, "a shorter name of a host")
    padded = np.frombuffer(text.ljust(_ADDRESS_BYTES), np.uint8)
    told = multihost_utils.broadcast_one_to_all(padded)
    return bytes(np.asarray(told, np.uint8)).rstrip()
