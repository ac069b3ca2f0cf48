"""Strict settings for every test: eight CPU devices, no silent promotion, no thread left."""

import gc
import os
import platform
import signal
import tempfile
import threading
from collections.abc import Iterator

import hypothesis
import jax
import pytest

from headrace.pipeline.xla_flags import same_bits_in_every_row

_TRIO_WORKER = "Trio thread"
_ENDING_SECONDS = 2.0  # for one that was told to end, as those of asyncio's executors

# All must be set before the first device is used.
os.environ["XLA_FLAGS"] = same_bits_in_every_row(
    os.environ.get("XLA_FLAGS", ""), machine=platform.machine(), jax_version=jax.__version__
)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# A shell starts what runs in its background with Ctrl-C ignored, which the tests and all their
# processes would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Programs that another test has compiled, under whatever name, are loaded. The environment is for
# the processes that tests start. A folder that the user chooses is kept: runs after the first
# then compile hardly anything.
_PROGRAMS = tempfile.TemporaryDirectory(prefix="headrace-programs-")
_CACHE = {
    "jax_compilation_cache_dir": os.environ.get("JAX_COMPILATION_CACHE_DIR", _PROGRAMS.name),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
for _name, _value in _CACHE.items():
    jax.config.update(_name, _value)
    os.environ[_name.upper()] = str(_value)

# The same examples on every machine: a failure is found again by running the test again.
# Compilation makes the first example slow, so there is no deadline for one.
hypothesis.settings.register_profile(
    "headrace",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=50,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("headrace")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where every optional package should be, one that is missing must not go unnoticed."""
    parser.addoption("--no-skips", action="store_true", help="a test that is skipped is an error")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if tests were skipped and mustn't be."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--no-skips") and reporter and reporter.stats.get("skipped"):
        reporter.section("tests were skipped, and --no-skips was given")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_finish() -> None:
    """Leave what is imported and collected out of all later garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread of its own.

    Trio keeps idle worker threads for the next call; they are daemons and end by themselves.
    """
    before = set(threading.enumerate())
    yield
    new = [thread for thread in threading.enumerate() if thread not in before]
    new = [thread for thread in new if not thread.name.startswith(_TRIO_WORKER)]
    for thread in new:
        thread.join(_ENDING_SECONDS)
    left = [thread.name for thread in new if thread.is_alive()]
    assert not left, f"the test left threads running: {left}"
