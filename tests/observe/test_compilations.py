import jax
import numpy as np

from headrace.pipeline.observe.compilations import CompilationCounter


def test_counts_each_new_program_once():
    program = jax.jit(lambda x: x * 5.0 - 2.0)
    small, large = np.ones(3, np.float32), np.ones(5, np.float32)
    with CompilationCounter() as compilations:
        program(small)
        first = compilations.total
        program(small)
        assert compilations.total == first >= 1
        compilations.mark()
        program(small)
        assert compilations.since_mark == 0
        program(large)
        assert compilations.since_mark == compilations.total - first >= 1


def test_counts_nothing_once_closed():
    with CompilationCounter() as compilations:
        pass
    jax.jit(lambda x: x * 7.0 - 3.0)(np.ones(3, np.float32))
    assert compilations.total == 0
