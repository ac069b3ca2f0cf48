"""The way from process 0 to its followers: one connection each, with a password.

Messages are pickled: whoever knows the password could run code, and whoever listens can read
them. It is drawn for each run, and the network is the cluster's own.
"""

import math
import os
import pickle
import queue
import socket
import struct
import sys
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from ..errors import HeadraceError
from .calls import Message

CONNECT_SECONDS = 60.0  # for all to connect, once JAX has joined them
GONE_SECONDS = 5.0  # that a follower may still take once process 0 has gone
GONE = "process 0 has failed or gone; see what it printed"
_SILENT_SECONDS = 50  # then a machine that doesn't answer has gone; JAX ends all after 100 s


class ProcessGone(HeadraceError):
    """Another process of the run has ended, or can't be reached."""


class _Line:
    """One connection; another thread may close it while one waits for a message."""

    def __init__(self, own: socket.socket):
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small messages go at once
        own.settimeout(None)
        _notice_silence(own)
        self._socket = own.dup()
        self._patience(CONNECT_SECONDS)
        self.connection = Connection(own.detach())

    def is_known(self) -> None:
        """Wait for the other side without limit from now on."""
        self._patience(0)

    def finish(self) -> None:
        """Say that nothing more comes."""
        with suppress(OSError):  # the other side has gone
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Hang up; wakes whoever waits."""
        with suppress(OSError):  # the other side has gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.connection.close()

    def _patience(self, seconds: float) -> None:
        limit = struct.pack("ll", int(seconds), 0)  # a timeval
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _notice_silence(one: socket.socket) -> None:
    """Let a connection fail where the other machine, or the way to it, has gone silently."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":  # elsewhere it takes hours, and JAX notices first
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_SECONDS // 5)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_SECONDS // 5)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENT_SECONDS)


class Leader:
    """Process 0's side.

    Example:
      leader = Leader(followers=1, password=password)
      ...  # the others are told leader.port
      leader.accept()
    """

    def __init__(self, followers: int, password: bytes):
        """Listen on a free port of all networks."""
        self._server = socket.create_server(("", 0), backlog=followers)
        self._server.settimeout(CONNECT_SECONDS)
        self._password = password
        self._waiting_for = followers
        self._lines: dict[int, _Line] = {}
        self._ended: dict[int, str] = {}  # why, by the follower's number; the first one first
        self._change = threading.Condition()  # of what has ended

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._server.getsockname()[1]
        return port

    @property
    def followers(self) -> list[int]:
        """Their numbers, of those that have connected."""
        return sorted(self._lines)

    def accept(self) -> None:
        """Wait until all followers have connected.

        Raises:
          ProcessGone: where one doesn't in time.
        """
        try:
            while len(self._lines) < self._waiting_for:
                self._let_in(*self._server.accept())
        except OSError as error:
            missing = self._waiting_for - len(self._lines)
            raise ProcessGone(
                f"{missing} of {self._waiting_for} processes didn't connect to port {self.port} "
                f"of process 0 within {CONNECT_SECONDS:g} s ({error}); let them reach it"
            ) from error
        finally:
            self._server.close()

    def _let_in(self, own: socket.socket, _: Any) -> None:
        line = _Line(own)
        try:
            deliver_challenge(line.connection, self._password)
            answer_challenge(line.connection, self._password)
            number = int(line.connection.recv())
        except (AuthenticationError, EOFError, OSError):
            line.close()  # a stranger
            return
        line.is_known()
        self._lines[number] = line
        name = f"end of process {number}"
        threading.Thread(
            target=self._wait_for, args=(number, line), name=name, daemon=True
        ).start()

    def _wait_for(self, number: int, line: _Line) -> None:
        """Wait until a follower has ended, on a thread of its own."""
        why = ""
        with suppress(EOFError, OSError):
            why = str(line.connection.recv())
            line.connection.recv()  # its end
        with self._change:
            self._ended[number] = why
            self._change.notify_all()

    def tell(self, message: Message) -> None:
        """Send a message to all.

        Raises:
          ProcessGone: where one can't be reached.
        """
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        for number, line in self._lines.items():
            try:
                line.connection.send_bytes(data)
            except OSError as error:
                gone = f"process {number} can't be reached any more: {error}"
                raise ProcessGone(gone) from error

    def first_end(self, seconds: float | None = None) -> tuple[int, str] | None:
        """Wait until a follower has ended, or so long, on a thread.

        Returns:
          Which one was the first, and why it ended, "" where it didn't say; None: all are there.
        """
        with self._change:
            self._change.wait_for(lambda: self._ended, seconds)
            return next(iter(self._ended.items()), None)

    def hang_up(self, seconds: float = math.inf) -> None:
        """Say that nothing more comes, and wait until all followers have ended, or so long."""
        for line in self._lines.values():
            line.finish()
        with self._change:
            limit = min(seconds, threading.TIMEOUT_MAX)
            self._change.wait_for(lambda: len(self._ended) == len(self._lines), limit)
        for line in self._lines.values():
            line.close()


class Follower:
    """The side of a process that follows."""

    def __init__(self, host: str, port: int, *, number: int, password: bytes):
        """Connect to process 0.

        Raises:
          ProcessGone: where it can't be reached in time.
        """
        try:
            self._line = _Line(socket.create_connection((host, port), timeout=CONNECT_SECONDS))
            self._say_who(number, password)
        except (AuthenticationError, EOFError, OSError) as error:
            raise ProcessGone(
                f"process {number} can't reach process 0 at {host}:{port}: {error}; open that way"
            ) from error
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._let_go = threading.Event()
        threading.Thread(target=self._take_in, name="messages of process 0", daemon=True).start()

    def _say_who(self, number: int, password: bytes) -> None:
        try:
            answer_challenge(self._line.connection, password)
            deliver_challenge(self._line.connection, password)
            self._line.connection.send(number)
            self._line.is_known()
        except BaseException:
            self._line.close()
            raise

    def _take_in(self) -> None:
        """Take in messages, on a thread of its own; end this process where process 0 has gone."""
        try:
            while True:
                self._messages.put(self._line.connection.recv_bytes())
        except (EOFError, OSError):
            self._messages.put(None)
        # It may be in a program that waits for the devices of process 0.
        if not self._let_go.wait(GONE_SECONDS):
            sys.stderr.write(f"headrace: {GONE}; this process is ended by force\n")
            os._exit(1)

    def hear(self, seconds: float | None = None) -> Message:
        """Wait for the next message.

        Raises:
          ProcessGone: where there is none left and process 0 has hung up.
          TimeoutError: where none comes within so many seconds.
        """
        try:
            data = self._messages.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"process 0 has told nothing for {seconds} s") from None
        if data is None:
            raise ProcessGone(GONE)
        message: Message = pickle.loads(data)
        return message

    def give_reason(self, text: str) -> None:
        """Tell process 0 why this process ends, unless it has gone."""
        with suppress(OSError):  # it has ended first
            self._line.connection.send(text)
        self._line.finish()

    def let_go(self) -> None:
        """Take from now on for right that process 0 goes; the end of this process tells it."""
        self._let_go.set()

    def close(self) -> None:
        """Hang up, so that process 0 takes this process for one that has ended."""
        self.let_go()
        self._line.close()
