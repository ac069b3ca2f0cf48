"""Environments: where tasks, observations and rewards come from.

Imports the standard library and trio only, so an environment can be written and tested
without the rest of Headrace.
"""

from .asyncio_env import AsyncioEnv as AsyncioEnv
from .asyncio_env import in_asyncio as in_asyncio
from .base import Env as Env
from .base import EnvironmentBroken as EnvironmentBroken
from .base import RewardFailed as RewardFailed
from .base import Split as Split
from .base import StepResult as StepResult
from .base import Task as Task
from .builtin import BUILTIN as BUILTIN
from .builtin import EnvConfig as EnvConfig
from .builtin import build_env as build_env
from .builtin import load_env as load_env
from .check import EnvContractError as EnvContractError
from .check import check_env as check_env
from .latency import LatencyConfig as LatencyConfig
from .latency import latency_seconds as latency_seconds
from .latency import with_latency as with_latency
from .messages import CallStatus as CallStatus
from .messages import Message as Message
from .messages import ToolCall as ToolCall
from .process_pool import ProcessStatistics as ProcessStatistics
from .processes import in_processes as in_processes
from .rewards import EpisodeRecord as EpisodeRecord
from .rewards import Reward as Reward
from .seeds import seeded_tasks as seeded_tasks
from .spec import EnvSpec as EnvSpec
from .threads import SyncEnv as SyncEnv
from .threads import in_threads as in_threads
from .tool_env import ToolEnv as ToolEnv
from .tool_env import answer_calls as answer_calls
from .tools import Tool as Tool
from .tools import ToolError as ToolError
from .tools import ToolResult as ToolResult
from .tools import answer_call as answer_call
from .tools import describe_problem as describe_problem
from .tools import tool as tool
from .tools import tool_threads as tool_threads
from .worker_process import WorkerProcessError as WorkerProcessError
from .worker_threads import ThreadStatistics as ThreadStatistics
from .worker_threads import TooManyHungThreads as TooManyHungThreads
