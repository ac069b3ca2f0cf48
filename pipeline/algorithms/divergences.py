"""Per-token estimates of the divergence from a reference policy that work as losses.

Write `d = log pi(t) - log pi_ref(t)` for a token t drawn from pi. Three estimates of
`KL(pi || pi_ref) = E[d]` are in use: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d.

Invariant: a function here has a useful expected gradient. k1 is missing on purpose: it
estimates the *value* without bias, but its gradient is that of `log pi(t)`, whose expectation
is 0. As a loss it regularises nothing and adds noise.

Reference: Schulman 2020, "Approximating KL divergence".
"""

import jax

from .importance import bounded_exp


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
