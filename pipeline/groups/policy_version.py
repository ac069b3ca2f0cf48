"""Policy-version arithmetic: how many groups may be admitted, and which ones are too old.

Integers only; no imports; every function is pure. The letters:

  v = updates committed by the learner. p = version published to, and acknowledged by, the
  sampler, p <= v. d = batches formed so far, which is also the number of the next batch; batch
  d is applied to version d, so v <= d. W(g) = oldest policy version in group g; lag(g) = d - W(g)
  for the batch d that takes it. U = groups admitted and neither assigned to a batch nor
  dropped. B = groups per batch, eta = `max_mean_lag`, K = `max_lag`, m = `publish_every`.

The bounded schedule admits a group iff U < (p + eta + 1 - d) * B, forms a batch from any B
ready groups, oldest W first, and removes each outstanding group with d - W > K as soon as d
has grown. The gate counts formed batches and not committed ones: a batch in training is
already formed, and with v in place of d an eta of 0 would admit data one version old.

Theorem. lag <= K always, and the lags of the first D batches sum to at most
(D - 1) * eta * B, so the mean lag is at most eta. With eta = 0 training is exactly on-policy.

Proof. First part: each group that is outstanding once batch d - 1 has formed has d - W <= K, and
d stays the same until batch d forms. A group admitted in between has W >= p >= d - eta >= d - K,
since the gate was open. Second part: U <= (p + eta + 1 - d) * B is an invariant. Admission keeps
it, a drop lowers the left side, forming a batch takes B from both, publishing raises the right.
For e >= 1 let S_e be the groups with W < e that are used in batch e or later. A group's lag is
the number of e with W < e <= d, so the lags of the first D batches sum to at most the sum of
|S_e| over 1 <= e < D; it remains to show |S_e| <= eta * B. Just before batch e - 1 forms,
p <= v <= e - 1, and U holds that batch and all of S_e admitted so far, at most
(eta + 1) * B - B = eta * B. A member admitted later finds p <= W <= e - 1 and some d >= e: with
it U <= (eta + e - d) * B, and the batches e to d - 1 have taken at most (d - e) * B.

Liveness. While the learner waits, each formed batch is committed: d = v. What is published is
the largest multiple of m, so v - p <= m - 1 <= eta. With nothing running and fewer than B
groups ready, U < B <= (p + eta + 1 - d) * B: admission is open. Hence `check_schedule`
asks for eta >= m - 1; and for K >= eta, else groups could be over age when admitted.
"""


def admissible(
    outstanding: int, published: int, formed: int, *, max_mean_lag: int, batch_groups: int
) -> int:
    """Return how many groups may be admitted now.

    Args:
      outstanding: U, groups, >= 0.
      published: p, the version that the sampler has acknowledged.
      formed: d, batches formed so far.
      max_mean_lag: eta, versions, >= 0.
      batch_groups: B, groups, >= 1.

    Returns:
      A number >= 0; 0 closes the gate.

    Example:
      >>> admissible(0, 0, 0, max_mean_lag=1, batch_groups=8)
      16
      >>> admissible(8, 0, 1, max_mean_lag=1, batch_groups=8)
      0
    """
    return max(0, (published + max_mean_lag + 1 - formed) * batch_groups - outstanding)


def lag(oldest: int, batch: int) -> int:
    """Return the lag, in versions, of a group with oldest version `oldest` in batch `batch`."""
    return batch - oldest


def over_age(oldest: int, formed: int, max_lag: int) -> bool:
    """Return whether a group can no longer be used: its lag in the next batch exceeds K.

    Args:
      oldest: W, or a lower bound of it for a group that is still running: the version
        published when it was admitted.
      formed: d, batches formed so far.
      max_lag: K, versions.
    """
    return lag(oldest, formed) > max_lag


def publish_target(committed: int, publish_every: int) -> int:
    """Return the version that should be published: the largest committed multiple of m.

    It does not depend on when the question is asked, so a late publish misses no version.

    Example:
      >>> [publish_target(v, 2) for v in range(5)]
      [0, 0, 2, 2, 4]
    """
    return committed - committed % publish_every


def check_schedule(
    *, batch_groups: int, max_mean_lag: int, max_lag: int, publish_every: int
) -> str | None:
    """Return what is wrong with a schedule, as text for people, or None.

    Example:
      >>> check_schedule(batch_groups=8, max_mean_lag=1, max_lag=0, publish_every=1)
      'max_lag must be >= max_mean_lag = 1, got 0; raise --schedule.max-lag'
    """
    if batch_groups < 1:
        return f"batch_groups must be >= 1, got {batch_groups}; set --schedule.batch-groups"
    if publish_every < 1:
        return f"publish_every must be >= 1, got {publish_every}; set --schedule.publish-every"
    if max_mean_lag < publish_every - 1:
        return (
            f"max_mean_lag must be >= publish_every - 1 = {publish_every - 1}, "
            f"got {max_mean_lag}; raise --schedule.max-mean-lag"
        )
    if max_lag < max_mean_lag:
        return (
            f"max_lag must be >= max_mean_lag = {max_mean_lag}, "
            f"got {max_lag}; raise --schedule.max-lag"
        )
    return None
