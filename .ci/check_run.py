"""Checks that a run of the calculator recipe learned. Usage: check_run.py RUN_DIRECTORY."""

import json
import sys
from pathlib import Path
from typing import Any


def find_faults(summary: dict[str, Any]) -> list[str]:
    """Return what is wrong with a run's summary, in words."""
    before, after = summary["eval_before"]["success"], summary["eval_after"]["success"]
    largest, bound = summary["lag"]["max"], summary["lag"]["bound"]
    compiled = summary["compilations_after_warmup"]
    checks = {
        f"success must be <= 0.45 before, got {before}": before <= 0.45,
        f"success must be >= 0.75 after, got {after}": after >= 0.75,
        f"lag.max must be <= {bound}, got {largest}": largest <= bound,
        f"compilations_after_warmup must be 0, got {compiled}": compiled == 0,
    }
    return [message for message, holds in checks.items() if not holds]


def main() -> None:
    """Print the verdict; exit with 1 if the run has faults."""
    path = Path(sys.argv[1]) / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    faults = find_faults(summary)
    print("\n".join(faults) or f"the run learned: {summary['eval_after']}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
