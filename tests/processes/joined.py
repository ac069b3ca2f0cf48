"""What `launch.run_in_processes` starts: `python joined.py FOLDER INDEX`."""

import importlib
import os
import pickle
import platform
import sys
from pathlib import Path

import jax

from headrace.pipeline.xla_flags import same_bits_in_every_row


def main(folder: Path, index: int) -> None:
    """Join the other processes, call the function, and write down what it gives."""
    processes, devices, port = pickle.loads((folder / "joining").read_bytes())
    os.environ["XLA_FLAGS"] = same_bits_in_every_row(
        os.environ.get("XLA_FLAGS", ""), machine=platform.machine(), jax_version=jax.__version__
    )
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `processes.join` does
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, index)
    (module, name), args = pickle.loads((folder / "job").read_bytes())  # may use JAX
    result = getattr(importlib.import_module(module), name)(*args)
    (folder / f"result-{index}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
