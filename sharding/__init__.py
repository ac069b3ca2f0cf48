"""Where arrays live: meshes, axis rules, partitioning, moving between meshes. Imports JAX only.

Model code names logical axes ("width", "heads", "rows"); `rules` maps them to mesh axes; only
this package knows devices.
"""
