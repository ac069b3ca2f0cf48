"""Headrace: asynchronous reinforcement learning of language-model agents in JAX."""
