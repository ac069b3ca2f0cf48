"""Headrace: asynchronous reinforcement learning of language-model agents in JAX.

The records and errors that all parts share are importable from here. Everything else has its
place along the path of a trajectory: see `headrace.pipeline`, `headrace.envs` (how to write an
environment) and `headrace.sharding`. Importing this module doesn't import JAX: the names that
need it are imported when they are first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .envs.base import Env as Env
from .envs.base import StepResult as StepResult
from .envs.base import Task as Task
from .envs.messages import Message as Message
from .envs.messages import ToolCall as ToolCall
from .envs.spec import EnvSpec as EnvSpec
from .pipeline.errors import ConfigError as ConfigError
from .pipeline.errors import HeadraceError as HeadraceError
from .pipeline.errors import PipelineStalled as PipelineStalled
from .pipeline.errors import StageFailed as StageFailed
from .pipeline.sampling import Sampling as Sampling
from .pipeline.types import Completion as Completion
from .pipeline.types import EpisodeFailure as EpisodeFailure
from .pipeline.types import FailureKind as FailureKind
from .pipeline.types import FinishReason as FinishReason
from .pipeline.types import Sampler as Sampler
from .pipeline.types import SampleRequest as SampleRequest
from .pipeline.types import StopReason as StopReason
from .pipeline.types import TopLogprobs as TopLogprobs
from .pipeline.types import TrainBatch as TrainBatch
from .pipeline.types import Trajectory as Trajectory
from .pipeline.types import TrajectoryGroup as TrajectoryGroup
from .pipeline.types import Turn as Turn

if TYPE_CHECKING:
    from .pipeline.policy import Policy as Policy
    from .pipeline.policy import TextFiles as TextFiles
    from .pipeline.policy import load_policy as load_policy
    from .pipeline.policy import save_policy as save_policy
else:
    _LATE = ("Policy", "TextFiles", "load_policy", "save_policy")

    def __getattr__(name: str) -> Any:
        """Import what needs JAX."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(".pipeline.policy", __name__), name)


__all__ = [
    "Completion",
    "ConfigError",
    "Env",
    "EnvSpec",
    "EpisodeFailure",
    "FailureKind",
    "FinishReason",
    "HeadraceError",
    "Message",
    "PipelineStalled",
    "Policy",
    "SampleRequest",
    "Sampler",
    "Sampling",
    "StageFailed",
    "StepResult",
    "StopReason",
    "Task",
    "TextFiles",
    "ToolCall",
    "TopLogprobs",
    "TrainBatch",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "load_policy",
    "save_policy",
]
