"""The mathematics of the updates: pure functions of one group, one row, or one token.

Each function states its paper's equation and has a NumPy oracle in the tests. None of them
knows of batches, meshes or policies: the learner maps and sums them.
"""
