"""The settings of an algorithm: a few independent choices that papers' methods combine.

Invariant: every field means the same whatever the others say; a combination that has no
meaning is refused. `presets` names the combinations that papers describe.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..errors import check

AdvantageName = Literal["group_relative", "leave_one_out", "none"]
CreditName = Literal["trajectory", "turn", "process", "critic"]
AggregationName = Literal["token_mean", "sequence_mean", "sequence_sum", "fixed_scale"]
_WEIGHT = r"[A-Za-z_]\w*=[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"  # name=number

LevelName = Literal["none", "token", "geometric", "sequence"]


@dataclass(frozen=True)
class CriticConfig:
    """The value model that rewards.credit = "critic" trains beside the policy."""

    learning_rate: float = 1e-5
    """Of its AdamW; all else is as for the policy."""
    gae_lambda: float = 0.95
    """1 trusts the rewards alone, 0 the critic's next value; in [0, 1]."""
    clip: float = 0.2
    """Values are clipped to so much around those at the start of an update; 0: they aren't."""

    def __post_init__(self) -> None:
        where = "algorithm.rewards.critic"
        rate = self.learning_rate
        check(rate > 0, f"{where}.learning_rate", rate, "> 0 and finite")
        check(0 <= self.gae_lambda <= 1, f"{where}.gae_lambda", self.gae_lambda, "in [0, 1]")
        check(self.clip >= 0, f"{where}.clip", self.clip, ">= 0 and finite")


@dataclass(frozen=True)
class RewardsConfig:
    """How the rewards of an episode become credit of its tokens."""

    credit: CreditName = "trajectory"
    """trajectory: all its tokens share one advantage; turn: a turn's tokens get the rewards from
    it on, compared with the same turn of other members; process: the same, but each reward is
    compared with all of the group's before they are added up; critic: a value model, trained
    beside the policy, says what each token changed."""
    discount: float = 1.0
    """Of later rewards, for each turn (with a critic: for each token), in (0, 1]."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """With a critic: how it learns."""
    weights: tuple[str, ...] = ()
    """Weights of rewards by name, as in correct=1 env=0; the others have those of EnvSpec."""
    separately: bool = False
    """Each named reward becomes an advantage of its own; then they are weighted and added up."""
    overlong_tokens: int = 0
    """An episode of more sampled tokens gets the whole penalty for length; 0: there is none."""
    overlong_buffer_tokens: int = 0
    """The penalty grows from 0 over so many tokens before overlong_tokens."""
    overlong_penalty: float = 1.0
    """Subtracted from the reward of an episode that is too long; >= 0."""
    mask_truncated: bool = False
    """Leave episodes that ran out of tokens out of the loss; they still count as members."""

    @property
    def weight_of(self) -> Mapping[str, float]:
        """The weights by name."""
        pairs = [each.partition("=") for each in self.weights]
        return {name: float(number) for name, _, number in pairs}

    def __post_init__(self) -> None:
        for each in self.weights:
            check(
                re.fullmatch(_WEIGHT, each) is not None,
                "algorithm.rewards.weights",
                each,
                "name=number",
            )
        check(0 < self.discount <= 1, "algorithm.rewards.discount", self.discount, "in (0, 1]")
        most_tokens = self.overlong_tokens
        check(most_tokens >= 0, "algorithm.rewards.overlong_tokens", most_tokens, ">= 0")
        buffer = self.overlong_buffer_tokens
        allowed = 0 <= buffer <= self.overlong_tokens
        most = f"in 0..algorithm.rewards.overlong_tokens ({self.overlong_tokens})"
        check(allowed, "algorithm.rewards.overlong_buffer_tokens", buffer, most)
        penalty = self.overlong_penalty
        check(penalty >= 0, "algorithm.rewards.overlong_penalty", penalty, ">= 0 and finite")
        check(
            not self.separately or self.credit == "trajectory",
            "algorithm.rewards.credit",
            self.credit,
            "'trajectory' with algorithm.rewards.separately",
        )


PLAIN_REWARDS = RewardsConfig()


@dataclass(frozen=True)
class ClipConfig:
    """How far a policy may move from where an update began."""

    low: float = 0.2
    """The importance ratio is clipped below 1 - low; in [0, 1]."""
    high: float = 0.28
    """The importance ratio is clipped above 1 + high; >= 0."""
    dual: float = 0.0
    """Dual clip: with a negative advantage no token weighs more than so many times it; > 1, or
    0 to leave it out."""

    def __post_init__(self) -> None:
        check(0 <= self.low <= 1, "algorithm.clip.low", self.low, "in [0, 1]")
        check(self.high >= 0, "algorithm.clip.high", self.high, ">= 0 and finite")
        check(self.dual == 0 or self.dual > 1, "algorithm.clip.dual", self.dual, "0 or > 1")


@dataclass(frozen=True)
class KlConfig:
    """The divergence from a reference policy."""

    coefficient: float = 0.0
    """Its weight; >= 0; 0 leaves it out, and the reference with it."""
    kind: Literal["k2", "k3", "k1_reward"] = "k3"
    """k2 and k3 are terms of the loss; k1_reward is subtracted from the tokens' rewards."""
    reference: Literal["start", "base"] = "start"
    """The policy at the start of RL, of which a copy is kept; or, beside adapters, the base
    without them, which needs none, and is another policy after a warm start."""
    reference_decay: float = 1.0
    """1: the reference stays. Below 1: it is a moving average, which keeps this share of itself at
    each update; in (0, 1]."""

    def __post_init__(self) -> None:
        check(self.coefficient >= 0, "algorithm.kl.coefficient", self.coefficient, ">= 0")
        decay = self.reference_decay
        check(0 < decay <= 1, "algorithm.kl.reference_decay", decay, "in (0, 1]")
        moves = self.reference == "base" and decay < 1
        only = "1 with the base as reference"
        check(not moves, "algorithm.kl.reference_decay", decay, only)


@dataclass(frozen=True)
class ImportanceConfig:
    """Corrections where another distribution drew the tokens than the one that learns."""

    weights: LevelName = "token"
    """Weigh tokens by old over sampled probability: of each token, of its sequence, or of the
    sequence's geometric mean."""
    cap: float = 2.0
    """Larger weights are cut down to it (truncated importance sampling); > 0."""
    mask: LevelName = "none"
    """Leave tokens out whose ratio at this level is outside of mask_low..mask_high."""
    mask_low: float = 0.5
    """>= 0."""
    mask_high: float = 5.0
    """> mask_low."""
    old_logprobs: Literal["recompute", "rollout", "interpolate"] = "recompute"
    """Where the clipped ratio starts: the learner's logprobs at the start of an update; the
    sampler's (one forward pass less; the ratio then carries the correction itself); or between
    the sampler's and the present ones, nearer to these the older the token."""
    target: Literal["sampled", "full"] = "sampled"
    """Where the sampler cuts its distribution (top-p and the like), the policy that learns is the
    cut one, or the whole softmax, towards which weights correct."""
    staleness_power: float = 0.0
    """A token of lag n weighs (1 + n) ** -staleness_power; 0: lags don't matter."""

    def __post_init__(self) -> None:
        check(self.cap > 0, "algorithm.importance.cap", self.cap, "> 0 and finite")
        low, high = self.mask_low, self.mask_high
        check(low >= 0, "algorithm.importance.mask_low", low, ">= 0 and finite")
        check(high > low, "algorithm.importance.mask_high", high, f"> mask_low ({low})")
        power = self.staleness_power
        check(power >= 0, "algorithm.importance.staleness_power", power, ">= 0 and finite")


@dataclass(frozen=True)
class AlgorithmConfig:
    """GRPO with the changes that proved themselves: clip-higher, token mean, truncated IS."""

    advantage: AdvantageName = "group_relative"
    """What a reward is compared with: its group's mean, the other members', or nothing."""
    normalize: Literal["group", "batch", "none"] = "group"
    """Divide advantages by their group's standard deviation, by the whole batch's, or not.
    With few different rewards in a group, its deviation blows small differences up."""
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    """How rewards become credit."""
    ratio: Literal["token", "sequence", "sequence_token"] = "token"
    """The importance ratio is a token's own, or the geometric mean of its sequence's."""
    surrogate: Literal["clip", "cispo", "reinforce"] = "clip"
    """The pessimistic clipped ratio (PPO), clipped constant weights of all tokens' logprobs, or
    the logprobs alone."""
    clip: ClipConfig = field(default_factory=ClipConfig)
    """How far the policy may move."""
    aggregation: AggregationName = "token_mean"
    """The mean over all tokens; over sequences, of their tokens' means or of their sums; or of
    their sums by a fixed number of tokens."""
    scale_tokens: int = 0
    """With fixed_scale: the number of tokens; 0 takes rollout.max_tokens."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy per token, in nats; >= 0."""
    sft_coefficient: float = 0.0
    """Weight of imitating the tokens with a positive advantage; >= 0."""
    kl: KlConfig = field(default_factory=KlConfig)
    """The divergence from a reference policy."""
    importance: ImportanceConfig = field(default_factory=ImportanceConfig)
    """Corrections for lag and for sampler and learner disagreeing."""

    def __post_init__(self) -> None:
        for name in ("entropy_bonus", "sft_coefficient", "scale_tokens"):
            value = getattr(self, name)
            check(value >= 0, f"algorithm.{name}", value, ">= 0 and finite")
        check(
            self.advantage == "group_relative" or self.normalize != "group",
            "algorithm.normalize",
            self.normalize,
            f"'batch' or 'none' with {self.advantage}, which has no deviation of a group",
        )
        check(
            self.rewards.credit != "critic" or self.advantage == "none",
            "algorithm.advantage",
            self.advantage,
            "'none' with algorithm.rewards.credit 'critic', which needs no other comparison",
        )

    @property
    def compares_members(self) -> bool:
        """Whether an advantage needs other members of the group."""
        return self.advantage != "none"

    @property
    def credits_tokens(self) -> bool:
        """Whether advantages need more than rewards: a critic's values or a reference."""
        return self.has_critic or (self.kl.kind == "k1_reward" and self.kl.coefficient > 0)

    @property
    def has_critic(self) -> bool:
        """Whether a value model is trained beside the policy."""
        return self.rewards.credit == "critic"
