"""One update: `(LearnerState, TrainBatch) -> (LearnerState, metrics)`, and its service.

`train_step` is pure and usable without the rest of the pipeline, from here; `service.Learner`
runs it on a device thread.
"""

from .logprobs import batch_logprobs as batch_logprobs
from .state import LearnerState as LearnerState
from .state import init_state as init_state
from .step import Anchors as Anchors
from .step import train_step as train_step

__all__ = ["Anchors", "LearnerState", "batch_logprobs", "init_state", "train_step"]
