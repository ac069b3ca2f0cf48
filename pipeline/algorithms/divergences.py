"""Per-token estimates of the divergence from a reference policy, each where it works.

Write `d = log pi(t) - log pi_ref(t)` for a token t drawn from pi. Three estimates of
`KL(pi || pi_ref) = E[d]` are in use: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d.

Invariant: what may be a loss has a useful expected gradient. k1 estimates the *value* without
bias, but its gradient is that of `log pi(t)`, whose expectation is 0: as a loss it regularises
nothing and adds noise. It is a penalty on rewards, a constant, and nothing else.

Reference: Schulman 2020, "Approximating KL divergence".
"""

import jax

from .importance import bounded_exp
from .sequences import sum_to_go


def k3(logprobs: jax.Array, ref_logprobs: jax.Array) -> jax.Array:
    """Estimate the divergence by `exp(-d) - 1 + d >= 0`: unbiased, low variance.

    Its expected gradient is that of `KL(pi_ref || pi)`, which to first order in d is also that
    of `KL(pi || pi_ref)`. Finite, with a bounded gradient, for all finite logprobs.

    Args:
      logprobs: f32[...], of tokens drawn from the policy that learns.
      ref_logprobs: f32[...], a constant.

    Reference: Shao et al. 2024, DeepSeekMath, equation 4.
    """
    difference = logprobs - jax.lax.stop_gradient(ref_logprobs)
    return bounded_exp(-difference) - 1.0 + difference


def k2(logprobs: jax.Array, ref_logprobs: jax.Array) -> jax.Array:
    """Estimate the divergence by `d^2 / 2 >= 0`: biased in value, exact in gradient.

    Its expected gradient is that of `KL(pi || pi_ref)`.

    Args:
      logprobs: f32[...], of tokens drawn from the policy that learns.
      ref_logprobs: f32[...], a constant.
    """
    difference = logprobs - jax.lax.stop_gradient(ref_logprobs)
    return 0.5 * difference * difference


def k1_penalties(
    old_logprobs: jax.Array, ref_logprobs: jax.Array, segment_ids: jax.Array
) -> jax.Array:
    """Add up k1 from each token to the end of its sequence, to subtract it from advantages.

    `P_t = sum_{s >= t} (log pi_old(s) - log pi_ref(s))`, a constant: with `A_t - c P_t` the policy
    gradient also descends the divergence.

    Args:
      old_logprobs: f32[..., T], at the start of the update; 0 where a token doesn't count, as
        `ref_logprobs`.
      segment_ids: i32[..., T].

    Reference: Hu et al. 2025, REINFORCE++, equation 4.
    """
    return jax.lax.stop_gradient(sum_to_go(old_logprobs - ref_logprobs, segment_ids))
