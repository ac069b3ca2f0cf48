"""What a run shows and leaves behind: meters, sinks, the run directory, the views.

Observers never change a run: they read records and write files and terminals.
"""
