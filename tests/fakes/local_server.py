"""Servers in processes of their own, on free ports of this machine."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def local_server(program: Path) -> Iterator[int]:
    """Start a program with a free port as its argument; yield the port when it listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, program, str(port)], **quiet)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen) -> None:
    for _ in range(900):
        assert process.poll() is None, "the server ended at its start"
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise AssertionError("the server didn't start within 90 seconds")
