"""The methods of papers, as combinations of `AlgorithmConfig`'s fields.

Invariant: where the sampler and the learner agree and the data is on-policy, each is the
paper's method. Elsewhere all keep the truncated weights against the sampler's probabilities,
which papers written for one engine leave out; `importance.weights = "none"` does so too.
docs/algorithms.md has the table with equations.
"""

from dataclasses import replace

from .config import (
    AlgorithmConfig,
    ClipConfig,
    ImportanceConfig,
    KlConfig,
    RewardsConfig,
)

_PPO_CLIP = ClipConfig(low=0.2, high=0.2)
_GRPO = AlgorithmConfig(clip=_PPO_CLIP, aggregation="sequence_mean", kl=KlConfig(0.04))
_GSPO = AlgorithmConfig(
    ratio="sequence", clip=ClipConfig(low=3e-4, high=4e-4), aggregation="sequence_mean"
)
_PPO = AlgorithmConfig(
    advantage="none",
    normalize="batch",
    rewards=RewardsConfig(credit="critic"),
    clip=_PPO_CLIP,
)

PRESETS: dict[str, AlgorithmConfig] = {
    "grpo": _GRPO,
    "grpo_process": replace(_GRPO, rewards=RewardsConfig(credit="process")),
    "dr_grpo": AlgorithmConfig(normalize="none", clip=_PPO_CLIP, aggregation="fixed_scale"),
    "dapo": AlgorithmConfig(),
    "gspo": _GSPO,
    "gspo_token": replace(_GSPO, ratio="sequence_token"),
    "cispo": AlgorithmConfig(surrogate="cispo", clip=ClipConfig(low=1.0, high=4.0)),
    "reinforce": AlgorithmConfig(
        advantage="none", normalize="none", surrogate="reinforce", aggregation="sequence_sum"
    ),
    "rloo": AlgorithmConfig(
        advantage="leave_one_out",
        normalize="none",
        surrogate="reinforce",
        aggregation="sequence_sum",
    ),
    "reinforce_pp": AlgorithmConfig(
        advantage="none", normalize="batch", clip=_PPO_CLIP, kl=KlConfig(0.01, "k1_reward")
    ),
    "reinforce_pp_baseline": AlgorithmConfig(
        normalize="batch", clip=_PPO_CLIP, kl=KlConfig(0.01, "k2")
    ),
    "gdpo": replace(_GRPO, normalize="batch", rewards=RewardsConfig(separately=True)),
    "ppo": _PPO,
    "ppo_dual_clip": replace(_PPO, clip=replace(_PPO_CLIP, dual=3.0)),
    "icepop": replace(_GRPO, importance=ImportanceConfig(cap=5.0, mask="token")),
    "mis": replace(
        _GRPO,
        importance=ImportanceConfig(
            weights="sequence", mask="sequence", mask_low=0.0, mask_high=2.0
        ),
    ),
    "a3po": replace(_GRPO, importance=ImportanceConfig(old_logprobs="interpolate")),
}
