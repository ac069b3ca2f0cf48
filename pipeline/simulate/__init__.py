"""The simulator: the real controller under virtual time, on hardware that only costs seconds."""
