"""Training without rollouts: imitation, preferences, distillation, and warm starts.

In the order of a run: `config`, `sources` and `rows` (what a file says), `stream` (in which
order), `examples` (through the renderer), `batch` (packed), `objectives` and `step` (pure and
jitted), `learner`; `start` and `assemble` put them together. `sft` is the warm start of a recipe.
"""
