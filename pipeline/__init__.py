"""The life of a trajectory, one file or folder for each step of the way.

1. `prompts`: a task is drawn from a shuffled, resumable dataset.
2. `controller`: a group is admitted if it can still be used fresh; `rollout.group` opens its
   episodes.
3. `rollout.episode`: an episode asks the policy for a turn; `sampler` gives the request a row,
   prefills and decodes.
4. `envs`: the environment answers with messages and a reward.
5. `rollout.trajectory`: the turn is appended to a token-exact record.
6. `groups.ledger`: a finished group waits, ages, and is taken, or dropped with a reason.
7. `groups.batching`: whole groups become one packed batch, with advantages by `algorithms`.
8. `learner`: one jitted update.
9. `groups.policy_version`: the policy version grows by one.
10. `weight_sync`: the weights move to the sampler.

What the steps share is in `types` and `errors`; `observe` shows and records; `cli`,
`commands` and `recipes` start it all. Nothing is imported here.
"""
