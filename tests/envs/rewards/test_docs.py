"""The example of docs/rewards.md gives what its text says."""

import re
from pathlib import Path

from headrace.envs import EpisodeRecord, Message, Task

PAGE = Path(__file__).parents[3] / "docs" / "rewards.md"


def test_the_example_scores_episodes():
    inside: dict = {"__name__": "rewards_page"}
    exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[0], inside)
    brevity, variety = inside["SPEC"].rewards
    episodes = [
        EpisodeRecord(Task("t"), (Message("assistant", text),), sampled_tokens=3)
        for text in ("a", "a", "b")
    ]
    assert brevity.function(episodes[0]) == -3.0
    assert variety.function(episodes) == [0.5, 0.5, 1.0]
