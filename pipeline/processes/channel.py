"""The way from process 0 to its followers: one connection each, with a password.

Messages are pickled: whoever knows the password could run code, and whoever listens can read
them. It is drawn for each run, and the network is the cluster's own.
"""

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
GONE_SECONDS = 10.0  # that a follower may still take once process 0 has gone
GONE = "process 0 has ended without a word; see what it printed"


class ProcessGone(HeadraceError):
    """Another process of the run has ended, or can't be reached."""


class _Line:
    """One connection; another thread may close it while one waits for a message."""

    def __init__(self, own: socket.socket):
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small messages go at once
        own.settimeout(None)
        self._socket = own.dup()
        self._patience(CONNECT_SECONDS)
        self.connection = Connection(own.detach())

    def is_known(self) -> None:
        """Wait for the other side without limit from now on."""
        self._patience(0)

    def close(self) -> None:
        """Hang up; wakes whoever waits."""
        with suppress(OSError):  # the other side has gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.connection.close()

    def _patience(self, seconds: float) -> None:
        limit = struct.pack("ll", int(seconds), 0)  # a timeval
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


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

    def wait_for_end(self, number: int) -> str:
        """Wait on a thread until a follower ends; return why, "" where it doesn't say."""
        try:
            return str(self._lines[number].connection.recv())
        except (EOFError, OSError):
            return ""

    def close(self) -> None:
        """Hang up."""
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
        self._closed = threading.Event()
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
        if not self._closed.wait(GONE_SECONDS):
            sys.stderr.write(f"headrace: {GONE}; this process is ended by force\n")
            os._exit(1)

    def hear(self) -> Message:
        """Wait for the next message.

        Raises:
          ProcessGone: where there is none left and process 0 has hung up.
        """
        data = self._messages.get()
        if data is None:
            raise ProcessGone(GONE)
        message: Message = pickle.loads(data)
        return message

    def give_reason(self, text: str) -> None:
        """Tell process 0 why this process ends, unless it has gone."""
        with suppress(OSError):  # it has ended first
            self._line.connection.send(text)

    def close(self) -> None:
        """Hang up; from now on process 0 may go."""
        self._closed.set()
        self._line.close()
