"""Rewards: functions over the record of an episode, or over those of a whole group.

Invariant: "0" and "couldn't be scored" are different outcomes. A reward function returns a number
or None; None, an exception, a missed deadline or the end of its process is a `RewardFailed`,
which costs the episode and is never a number.
"""

from ..base import RewardFailed as RewardFailed
from .judge import Judge as Judge
from .judge import JudgeConfig as JudgeConfig
from .judge import JudgeError as JudgeError
from .record import EpisodeRecord as EpisodeRecord
from .reward import ENV as ENV
from .reward import Reward as Reward
from .scorer import Scorer as Scorer
