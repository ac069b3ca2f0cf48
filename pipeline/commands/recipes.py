"""`headrace recipes`: what can be trained without writing a file."""

import sys

from ..recipes import builtin_recipes


def recipes() -> int:
    """List the built-in recipes, a line each."""
    names = builtin_recipes()
    width = max(len(name) for name in names)
    sys.stdout.writelines(f"{name:<{width}}  {text}\n" for name, text in names.items())
    return 0
