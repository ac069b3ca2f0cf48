"""Training without rollouts: imitation, preferences, distillation, and warm starts.

In the order of a run: `config`, `sources` and `rows` (what a file says), `examples` (through the
renderer), `batch` (packed), `objectives` and `step` (pure and jitted), `learner`; `assemble` puts
them together. `sft` is the warm start of a recipe.
"""
