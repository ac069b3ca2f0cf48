"""Groups of trajectories between rollout and learner: admitted, ageing, taken whole or dropped.

`policy_version` is the arithmetic and its proof, `ledger` the state machine that applies it,
`batching` packs the groups of a batch into rows.
"""
