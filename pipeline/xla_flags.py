"""Flags of XLA that must be set in the environment before JAX is first used.

XLA's code for exp, log or tanh may give an element of an array another last bit than the same
value at another place. Where that happens in the sampler, a row's bits depend on its place, and
law 7 doesn't hold: so with JAX 0.12 on a processor with AVX-512. With instructions up to AVX2
that wasn't seen any more. With JAX 0.10 the flag changes nothing: there it happens to rows beyond
whole vectors, which `sampler.layout.check_bits` refuses, and was seen nowhere else.
"""

_FLAG = "--xla_cpu_max_isa"
_MACHINES = ("x86_64", "AMD64")
_TOO_NEW = (0, 13)  # an XLA that doesn't know a flag ends the process: later ones weren't tried


def same_bits_in_every_row(flags: str, *, machine: str, jax_version: str) -> str:
    """Give the value of XLA_FLAGS under which law 7 was found to hold on x86.

    Products of matrices aren't concerned: their code is chosen in another way.

    Args:
      flags: the present value; a flag in it is left as it is.
      machine: of `platform.machine()`.

    Example:
      >>> same_bits_in_every_row("--a=1", machine="x86_64", jax_version="0.10.2")
      '--a=1 --xla_cpu_max_isa=AVX2'
      >>> same_bits_in_every_row("--a=1", machine="aarch64", jax_version="0.10.2")
      '--a=1'
    """
    major, minor = map(int, jax_version.split(".")[:2])
    if _FLAG in flags or machine not in _MACHINES or (major, minor) >= _TOO_NEW:
        return flags
    return f"{flags} {_FLAG}=AVX2".strip()
