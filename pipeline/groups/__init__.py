"""Groups of trajectories between rollout and learner: admitted, ageing, taken whole or dropped.

`policy_version` is the arithmetic and its proofs. `ledger` is the state machine that applies it,
with `state` (what it knows), `members` (the state machine of one group), `drops` and `events`.
`batching` makes the groups of a batch into one `TrainBatch`; `packing` lays out its rows.
"""
