"""Messages to token ids and back: incremental, prefix-exact, without JAX."""
