"""Training without rollouts: warm starts on scripted conversations."""
