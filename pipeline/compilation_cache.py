"""Keeps compiled programs on disk, by JAX's own cache; a second start then compiles nothing."""

import jax


def keep_programs(folder: str | None) -> None:
    """Keep every program that is compiled from now on in a folder, and look for it there first.

    Programs of another machine, JAX or shape aren't found and are compiled as before.

    Args:
      folder: made where it doesn't exist; None changes nothing: JAX's own settings hold.
    """
    if folder is None:
        return
    settings = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]  # untyped in JAX
