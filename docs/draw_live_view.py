"""Draws the live view as it stood at the end of a run, as an SVG picture.

usage: python docs/draw_live_view.py RUN_DIRECTORY PICTURE.svg
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.pipeline.observe.cells import Progress
from headrace.pipeline.observe.live import Frame
from headrace.pipeline.observe.panel import PanelContent

WIDTH, HEIGHT = 88, 20


def read_content(directory: Path) -> PanelContent:
    """Read what the panel showed from `summary.json` and `metrics.jsonl`."""
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return PanelContent(
        recipe=summary["recipe"],
        phase="training",
        progress=Progress("step", records[-1]["step"], summary["steps"]),
        elapsed_seconds=summary["wall_seconds"],
        record=records[-1],
        rewards=[record["reward"] for record in records],
        successes=[record["success"] for record in records],
    )


def main() -> None:
    """Draw the picture."""
    directory, picture = map(Path, sys.argv[1:])
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, height=HEIGHT, color_system="truecolor"
    )
    console.print(Frame(read_content(directory)))
    console.save_svg(str(picture), title="headrace train")


if __name__ == "__main__":
    main()
