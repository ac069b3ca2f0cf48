"""One update: `(LearnerState, TrainBatch) -> (LearnerState, metrics)`, and its service.

`train_step` is pure and usable without the rest; `Learner` runs it on a device thread.
"""
