"""Episodes and groups: from a task to token-exact trajectories. Never imports JAX."""
