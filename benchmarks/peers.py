"""Other libraries' drivers, run as commands between our own rounds.

A driver prints a line `RESULT {json}`. Whatever is in it goes into the report. If it has
`results` by model and batch, `{"m4/b32": {"call_cpu_s_min": 1.05}}`, then our tokens per
CPU-second are also given as a multiple of the driver's; so is our cost of a trajectory, if it
has `gen_cpu_s_per_traj`, CPU-seconds of generation.
"""

import json
import shlex
import subprocess
from typing import Any

_MARK = "RESULT "


class PeerFailedError(Exception):
    """A driver ended without a result."""


def run_peer(command: str) -> dict[str, Any]:
    """Run a driver to its end and return its result, with the command in it.

    Raises:
      PeerFailedError: where it prints no result; with the end of what it wrote.
    """
    run = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    result = find_result(run.stdout)
    if result is None:
        raise PeerFailedError(
            f"{command!r} must print a line '{_MARK}{{json}}'; it ended with {run.returncode} "
            f"and wrote: {(run.stdout + run.stderr)[-2000:]}"
        )
    return {"command": command} | result


def find_result(output: str) -> dict[str, Any] | None:
    """Find the last result in what a driver printed."""
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    if not lines:
        return None
    result: dict[str, Any] = json.loads(lines[-1].removeprefix(_MARK))
    return result


def times_peers(
    ours: dict[str, float], peers: list[dict[str, Any]], *, new_tokens: int
) -> dict[str, float]:
    """Divide our tokens per CPU-second by the best of the peers', where they measured the same.

    Args:
      ours: tokens per CPU-second by case, as `m4/32`.
      new_tokens: sampled tokens of each row of a peer's call.
    """
    ratios = {}
    for case, rate in ours.items():
        model, _, rows = case.partition("/")
        calls = [
            peer["results"][f"{model}/b{rows}"]["call_cpu_s_min"]
            for peer in peers
            if f"{model}/b{rows}" in peer.get("results", {})
        ]
        if calls:
            ratios[case] = rate * min(calls) / (int(rows) * new_tokens)
    return ratios


def times_peers_trajectory(cpu_seconds: float, peers: list[dict[str, Any]]) -> dict[str, float]:
    """Divide the least CPU time that a peer generates a trajectory in by ours, if one says it."""
    costs = [peer["gen_cpu_s_per_traj"] for peer in peers if "gen_cpu_s_per_traj" in peer]
    return {"agentic_small": min(costs) / cpu_seconds} if costs else {}
