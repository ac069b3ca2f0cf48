"""One decoder for every family: pure functions over a parameter pytree of plain dicts."""
