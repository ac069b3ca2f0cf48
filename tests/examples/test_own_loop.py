"""The example runs as its reader would run it, and learns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"


@pytest.mark.slow
def test_the_share_of_wrong_answers_falls():
    run = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=EXAMPLE.parents[1],
        env={
            "PYTHONPATH": str(EXAMPLE.parents[1]),
            "JAX_PLATFORMS": "cpu",
            "HOME": "/nonexistent",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    wrong = [float(share) for share in re.findall(r"wrong (\d\.\d+)", run.stdout)]
    assert wrong[0] > 0.7
    assert wrong[-1] < 0.2
    assert run.stderr == ""
