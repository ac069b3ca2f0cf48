"""Policy-version arithmetic: how many groups may be admitted, and which ones are too old.

Integers only; no imports; every function is pure. The letters:

  v = updates committed by the learner. p = version published to, and acknowledged by, the
  sampler, p <= v. d = batches formed so far, which is also the number of the next batch; batch
  d is applied to version d, so v <= d. W(g) = oldest policy version in group g; lag(g) = d - W(g)
  for the batch d that takes it. U = groups admitted and neither assigned to a batch nor
  dropped. B = groups per batch, eta = `max_mean_lag`, K = `max_lag`, m = `publish_every`.
  What is published is a multiple of m; only the last publish of a run may be another version.

The bounded schedule
--------------------
It admits a group iff U < (p + eta + 1 - d) * B, forms a batch from any B ready groups, oldest W
first, and removes each outstanding group with d - W > K as soon as d has grown. The gate counts
formed batches and not committed ones: a batch in training is already formed, and with v in
place of d an eta of 0 would admit data one version old.

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

Masking. With `over_age="mask"` no running group is removed, and a ready one only if d - K is
above even its newest version; the tokens with d - version > K leave the loss of the batch that
takes it. So each token of a loss has a lag of at most K, each group of a batch has such tokens,
and min(lag, K) bounds the lag of all of them: that is what is counted. The second part never
used K: it bounds the sum of the lags, hence that of min(lag, K).

Liveness. While the learner waits, each formed batch is committed: d = v. What is published is
the largest multiple of m, so v - p <= m - 1 <= eta. With nothing running and fewer than B
groups ready, U < B <= (p + eta + 1 - d) * B: admission is open. Hence `check_schedule`
asks for eta >= m - 1; and for K >= eta, else groups could be over age when admitted.

The lockstep schedule
---------------------
Group n belongs to batch b = n // B, and all its tokens are sampled under version
w(n) = m * ceil(max(0, b - eta) / m), for which the sampler keeps the weights of older versions
until no group needs them. Group n is admitted iff w(n) <= p. Every multiple of m is published,
in order: a publish that left one out would leave groups without their version. Batch b forms
when all its groups have ended, of those that didn't fail, in the order of n; it may be empty.

Theorem. lag <= eta always; exactly, batch b has the lag b - w. Nothing is dropped for its age.
What each batch holds is a function of the initial weights, the tasks and the random keys, if
that is true of each single group (of one that fails at a deadline it isn't): neither latencies
nor the order in which groups end change it. So two runs are equal bit for bit, while generation
and learning overlap if eta >= 1.

Proof. w >= b - eta gives the lag. w <= b: either w = 0, or w <= b - eta + m - 1 <= b since
eta >= m - 1; so w is a version that exists before batch b is needed, in fact a multiple of m
not above b. Which groups a batch has, their tasks, keys and versions depend on n alone, and the
weights of version w on the batches before w. By induction over b no timing enters.

Liveness. While the learner waits for batch b, v = b, and every multiple of m up to b gets
published, w among them: all groups of batch b may be admitted. Each of them ends, well or not,
if episodes have deadlines, and then the batch forms. Memory is bounded too: w(n) <= p says
n < (p - p mod m + eta + 1) * B, so at most (eta + 1) * B groups are outstanding; they need
multiples of m from d - eta to d, so at most eta // m + 1 versions are held at once.
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


def lockstep_version(
    index: int, *, batch_groups: int, max_mean_lag: int, publish_every: int
) -> int:
    """Return w(n), the version that samples all of group n in lockstep. It grows with n.

    Args:
      index: n, the admission index, >= 0.
      batch_groups: B, groups, >= 1.
      max_mean_lag: eta, versions, >= m - 1.
      publish_every: m, versions, >= 1.

    Example:
      >>> [lockstep_version(n, batch_groups=2, max_mean_lag=1, publish_every=1) for n in range(8)]
      [0, 0, 0, 0, 1, 1, 2, 2]
      >>> [lockstep_version(b, batch_groups=1, max_mean_lag=2, publish_every=2) for b in range(8)]
      [0, 0, 0, 2, 2, 4, 4, 6]
    """
    wanted = max(0, index // batch_groups - max_mean_lag)
    return wanted + -wanted % publish_every


def lockstep_admissible(
    admitted: int, published: int, *, batch_groups: int, max_mean_lag: int, publish_every: int
) -> int:
    """Return how many more groups n, from n = `admitted` on, have w(n) <= p.

    Args:
      admitted: groups ever admitted.
      published: p, the version that the sampler has acknowledged.
      batch_groups: B, groups, >= 1.
      max_mean_lag: eta, versions, >= m - 1.
      publish_every: m, versions, >= 1.

    Example:
      >>> lockstep_admissible(4, 1, batch_groups=2, max_mean_lag=1, publish_every=1)
      2
    """
    multiple = publish_target(published, publish_every)
    return max(0, (multiple + max_mean_lag + 1) * batch_groups - admitted)


def publish_target(committed: int, publish_every: int) -> int:
    """Return the version that should be published: the largest committed multiple of m.

    It does not depend on when the question is asked, so a late publish misses no version.

    Example:
      >>> [publish_target(v, 2) for v in range(5)]
      [0, 0, 2, 2, 4]
    """
    return committed - committed % publish_every


def next_publish(published: int, publish_every: int) -> int:
    """Return the first multiple of m above p: the version to publish next in lockstep.

    Example:
      >>> [next_publish(p, 2) for p in range(4)]
      [2, 2, 4, 4]
    """
    return publish_target(published, publish_every) + publish_every


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
