"""Find an environment by its name.

A name is a built-in one, `library/name` of one that the library has, or
`package.module:attribute`, an `EnvSpec` of the user's. Mistakes are `ValueError`s with a message
for the user.
"""

import difflib
import importlib
from dataclasses import dataclass, field, replace

from . import calculator, calculator_chat, code_tasks, frozen_lake, guess_number, lookup, search
from .latency import LatencyConfig, with_latency
from .spec import EnvSpec

BUILTIN = {
    "calculator": replace(calculator.SPEC, for_chat=calculator_chat.SPEC),
    "code": code_tasks.SPEC,
    "frozen_lake": frozen_lake.SPEC,
    "guess_number": guess_number.SPEC,
    "lookup": lookup.SPEC,
    "search": search.SPEC,
}

# Each has an adapter with `spec(name)`, and an extra of this name with "-".
LIBRARIES = ("gymnasium", "reasoning_gym", "textarena")


@dataclass(frozen=True)
class EnvConfig:
    """Which environment a run uses."""

    name: str = "calculator"
    """A built-in environment, one of a library as in `gymnasium/Taxi-v4` or
    `reasoning_gym/chain_sum`, or `package.module:attribute` of an EnvSpec."""
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    """How long the environment takes to answer, if not as long as its task does."""

    def latency_of(self, spec: EnvSpec | None) -> LatencyConfig:
        """Return how long an environment takes; None: nothing is known of it."""
        if spec is None or self.latency.kind != "none":
            return self.latency
        return replace(spec.latency, seed=self.latency.seed)


def build_env(config: EnvConfig, *, for_chat: bool = False) -> EnvSpec:
    """Load a config's environment, its latency included.

    Args:
      for_chat: in its words for a chat model, where it has some.

    Raises:
      ValueError: where there is no such environment.
    """
    spec = load_env(config.name)
    if for_chat and spec.for_chat is not None:
        # Who adds rewards to a built-in environment means them for its chat words, too.
        spec = replace(spec.for_chat, rewards=spec.for_chat.rewards or spec.rewards)
    latency = config.latency_of(spec)
    return replace(spec, make=with_latency(spec.make, latency), latency=latency)


def load_env(name: str) -> EnvSpec:
    """Load the environment of a name.

    Raises:
      ValueError: for an unknown name, a module or library that can't be imported, or an
        attribute that is missing or no EnvSpec.

    Example:
      >>> load_env("calculator").best_reward
      1.0
    """
    if name in BUILTIN:
        return BUILTIN[name]
    library, _, own = name.partition("/")
    if library in LIBRARIES and own:
        return _of_library(name, library, own)
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute) or module_name.startswith("."):
        raise ValueError(_unknown_name(name))
    found = _attributes(name, module_name).get(attribute)
    if not isinstance(found, EnvSpec):
        what = "missing" if found is None else f"of type {type(found).__name__}"
        raise ValueError(
            f"env.name must point at an EnvSpec; in {name!r} the attribute {attribute!r} "
            f"is {what}; define {attribute} = EnvSpec(...) in {module_name}"
        )
    return found


def _of_library(name: str, library: str, own: str) -> EnvSpec:
    try:
        made: EnvSpec = importlib.import_module(f".adapters.{library}", __package__).spec(own)
    except Exception as error:  # a library may raise anything where it has no such name
        missing = isinstance(error, ModuleNotFoundError) and error.name == library
        install = f"; pip install 'headrace[{library.replace('_', '-')}]'" if missing else ""
        raise ValueError(f"env.name {name!r}: {type(error).__name__}: {error}{install}") from error
    return made


def _attributes(name: str, module_name: str) -> dict[str, object]:
    try:
        return vars(importlib.import_module(module_name))
    except (Exception, SystemExit) as error:  # a module may raise anything while it is run
        raise ValueError(
            f"env.name {name!r}: the module {module_name!r} can't be imported: "
            f"{type(error).__name__}: {error}; mend or install it, or run from its folder"
        ) from error


def _unknown_name(name: str) -> str:
    close = difflib.get_close_matches(name, BUILTIN, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    known = ", ".join(BUILTIN)
    libraries = ", ".join(f"{library}/..." for library in LIBRARIES)
    return (
        f"unknown env.name {name!r}; {hint}use {known}, {libraries}, or package.module:attribute"
    )
