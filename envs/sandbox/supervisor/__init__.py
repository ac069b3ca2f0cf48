"""The process that owns all sandboxes of a run: it starts, feeds, limits, kills and reaps them.

It is a process of its own, with one thread, for three reasons: a sandbox dies with the thread
that launched it, so that thread must live as long as the run; only a subreaper inherits the
zombies that a killed sandbox leaves; and when the run is killed, somebody must still clean up.

Invariant: what is imported here is the standard library alone, since a bare interpreter runs
it (`python -I -S`); and no process of a sandbox outlives the answer to the call that ended it.
"""
