"""Runs one function in several processes that JAX joins, each with some fake CPU devices."""

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
SECONDS = 120


def run_in_processes(
    function: Callable[..., Any], *args: Any, folder: Path, processes: int = 2, devices: int = 2
) -> list[Any]:
    """Call `function(*args)` in every process, and return what each gives.

    The function must be one of a module's; arguments and results are pickled. In it
    `jax.process_index()` says which process it is, and `jax.devices()` has those of all.

    Args:
      folder: an empty one, for this call's files.
      devices: of each process.
    """
    name = function.__module__, function.__qualname__
    (folder / "job").write_bytes(pickle.dumps((name, args)))
    (folder / "joining").write_bytes(pickle.dumps((processes, devices, free_port())))
    running = [_start(folder, index) for index in range(processes)]
    try:
        codes = [one.wait(SECONDS) for one in running]
    finally:
        for one in running:
            one.kill()
            one.wait()
    if any(codes):
        texts = [(folder / f"said-{index}").read_text() for index in range(processes)]
        raise AssertionError(f"the processes ended with {codes}:\n" + "\n---\n".join(texts))
    return [pickle.loads((folder / f"result-{index}").read_bytes()) for index in range(processes)]


def free_port() -> int:
    """Find one that nobody listens to, for now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _start(folder: Path, index: int) -> subprocess.Popen[bytes]:
    with (folder / f"said-{index}").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "joined.py"), str(folder), str(index)],
            env=os.environ | {"PYTHONPATH": str(PROJECT)},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
