"""The native sampler: the bridge between trio's tasks and the engine on its device thread.

A request is posted and its task waits; the thread never waits for trio. All completions of a
step come back in one call. A task that is cancelled takes its request back; its row is free
at the next dispatch. Which versions stay alive is decided here, on trio's side; the thread
keeps the weights of each until it is told.
"""

import itertools
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import trio
from jax.sharding import Mesh

from ..device_thread import DeviceThread
from ..models.model import Model
from ..processes.calls import Calls
from ..sampling import Constraint
from ..types import Completion, FinishReason, SampleRequest, SamplerLoad
from .config import SamplerConfig
from .engine import Engine, SamplerStatistics
from .occupant import Ticket
from .options import check_fits
from .programs import Programs, weight_places
from .scheduler import Finished
from .stops import DecodeText
from .versions import LiveVersions

_ENDED = "the sampler has ended"

Answer = Completion | Exception


@dataclass(eq=False)
class _Pending:
    """A task that waits for its completion."""

    done: trio.Event = field(default_factory=trio.Event)
    answer: Answer | None = None


class NativeSampler:
    """The `Sampler` of this process. Start it as a stage: `await nursery.start(sampler.serve)`.

    Requests made before the first `publish` wait for it.
    """

    def __init__(
        self,
        config: SamplerConfig,
        model: Model,
        *,
        mesh: Mesh | None = None,
        programs: Programs | None = None,
        decode_text: DecodeText | None = None,
        close_deadline_seconds: float = 10.0,
        calls: Calls | None = None,
    ):
        """Args:
        model: such as `decoder_model(config, vocab_size)`; token ids are below its vocabulary.
        mesh: devices with axes "fsdp", over which rows and pages are cut, and "tensor", over
          which kv heads are; None for one device.
        decode_text: turns sampled ids into text; requests with stop strings need it.
        programs: compiled before for equal sizes and mesh; None compiles them when needed.
        close_deadline_seconds: for the command that runs on the device thread at the end.
        calls: where the mesh has devices of several processes, what they call together.
        """
        self._config = config
        self._places = partial(weight_places, config, model, mesh)
        self._vocab_size = model.vocab_size
        self._sizes = config.option_sizes(model.vocab_size)
        self._decode_text = decode_text
        self._engine = Engine(config, model, mesh=mesh, programs=programs, decode_text=decode_text)
        self._device = DeviceThread(
            "sampler", background=self._work, close_deadline_seconds=close_deadline_seconds
        )
        self._versions = LiveVersions(self._drop)
        self._tickets = itertools.count()
        self._pending: dict[Ticket, _Pending] = {}
        self._trio: trio.lowlevel.TrioToken | None = None
        self._brought: dict[int, Any] = {}  # weights by version, until they are published
        self._constraints: dict[Ticket, Constraint] = {}  # until their requests are submitted
        self._calls = calls = Calls() if calls is None else calls
        engine = self._engine
        self._submit_it = calls.add("sampler submit", self._enter)
        self._cancel_it = calls.add("sampler cancel", engine.cancel)
        self._publish_it = calls.add("sampler publish", self._take_weights)
        self._drop_it = calls.add("sampler drop", engine.drop)
        self._step_it = calls.add("sampler step", engine.step)

    @property
    def policy_version(self) -> int:
        """The version published last, `NO_VERSION` before the first."""
        return self._versions.newest

    @property
    def device(self) -> DeviceThread:
        """The thread that owns the devices; a learner on the same devices shares it."""
        return self._device

    def places(self) -> Any:
        """Say where weights that are published best lie already: a tree of shardings.

        None: without a mesh. Weights that lie elsewhere are moved, which may take long.
        """
        return self._places()

    def compile(self) -> None:
        """Compile all programs; call it before `serve`, from any thread. Takes seconds."""
        self._engine.compile()

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the engine until cancelled; raise what it raises."""
        self._trio = trio.lowlevel.current_trio_token()
        try:
            await self._device.serve(task_status)
        finally:
            for pending in self._pending.values():
                pending.done.set()

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one turn. Cancelling the call frees its row at the next dispatch.

        Raises:
          ValueError: where the request itself is malformed, or its version is neither the
            newest nor held; others aren't affected. So is what its constraint raises.
          ConfigError: where it asks for more than the sampler was compiled for (`DrawLimits`).
          trio.ClosedResourceError: where the sampler has ended.
        """
        self._check(request)
        if len(request.tokens) >= self._config.context_tokens:
            await trio.lowlevel.checkpoint()
            return _nothing_sampled()
        if self._device.ended:
            raise trio.ClosedResourceError(_ENDED)
        with self._versions.use(request.version):
            answer = await self._submit(request)
        if answer is None:
            # If the sampler's failure is cancelling this task too, let that come first.
            await trio.lowlevel.checkpoint()
            raise trio.ClosedResourceError(_ENDED)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def publish(self, params: Any, version: int) -> None:
        """Swap the weights between two dispatches; returns when they are in use.

        Rows in flight keep their cache; their later tokens have the new version, unless their
        request names another. If the caller is cancelled, the swap may still happen.

        Args:
          params: from the model's `sampler_params`, with the configuration's weights; not
            changed and not donated.
          version: newer than all before.

        Raises:
          ValueError: where it isn't, or the weights have another structure, shape or dtype than
            the model's; the sampler goes on with those that it has.
        """
        self.bring(params, version)
        await self._device.run(partial(self._publish, version))

    def bring(self, params: Any, version: int) -> None:
        """Lay weights ready for the publish of a version, in every process of a run of several.

        In process 0 `publish` does it, too.
        """
        self._brought[version] = params

    def hold(self, version: int) -> AbstractContextManager[None]:
        """Keep the weights of a version within the context, whatever is published meanwhile.

        Holds are counted; each version that is alive costs one copy of the weights.

        Raises:
          ValueError: where it is neither the newest version nor held already.
        """
        return self._versions.hold(version)

    def weights(self, version: int) -> Any:
        """Return the weights of a version that is alive; call it on the device thread."""
        return self._engine.weights(version)

    def load(self) -> SamplerLoad:
        """Say how busy it is; to be called from trio.

        `rows_busy + waiting` is the number of requests without a completion: each counts from
        its call on, also while the device thread hasn't seen it.
        """
        under_way = len(self._pending)
        statistics = self._engine.statistics()
        rows_busy = min(statistics.rows_busy, under_way)  # the rest was cancelled
        return SamplerLoad(
            rows=self._config.rows,
            rows_busy=rows_busy,
            waiting=under_way - rows_busy,
            pages_free=statistics.pages_free,
            preemptions=statistics.preemptions,
        )

    def statistics(self) -> SamplerStatistics:
        """Say what the sampler has done and is doing."""
        return self._engine.statistics()

    async def _submit(self, request: SampleRequest) -> Answer | None:
        ticket, pending = next(self._tickets), _Pending()
        self._pending[ticket] = pending
        constraint = request.sampling.constraint
        if constraint is not None:
            self._constraints[ticket] = constraint
            request = _with_constraint(request, None)
        self._device.post(partial(self._submit_it, ticket, request, constraint is not None))
        try:
            await pending.done.wait()
        finally:
            if self._pending.pop(ticket, None) is not None:
                self._device.post(partial(self._cancel_it, ticket))
        return pending.answer

    def _enter(self, ticket: Ticket, request: SampleRequest, constrained: bool) -> None:
        """Submit a request; what it may sample its constraint says in process 0."""
        if constrained:
            constraint = self._calls.share(self._constraints.pop(ticket, None))
            request = _with_constraint(request, constraint)
        self._engine.submit(ticket, request)

    def _take_weights(self, version: int) -> None:
        self._engine.publish(self._brought.pop(version), version)

    def _publish(self, version: int) -> None:
        """Swap the weights, on the device thread, and tell trio's side whoever waits for it."""
        self._publish_it(version)
        assert self._trio is not None
        self._trio.run_sync_soon(self._versions.publish, version)

    def _drop(self, version: int) -> None:
        # Commands run in order: the last request of the version has left the engine by then.
        self._device.post(partial(self._drop_it, version))

    def _work(self) -> bool:
        """One step of the engine, on the device thread."""
        finished = self._step_it() if self._engine.has_work else []
        if finished:
            assert self._trio is not None
            self._trio.run_sync_soon(self._deliver, finished)
        return self._engine.has_work

    def _deliver(self, finished: list[Finished]) -> None:
        for ticket, answer in finished:
            pending = self._pending.pop(ticket, None)
            if pending is not None:
                pending.answer = answer
                pending.done.set()

    def _check(self, request: SampleRequest) -> None:
        tokens = request.tokens
        if tokens.ndim != 1 or tokens.dtype != np.int32:
            raise ValueError(
                f"tokens of a request must be int32[n], got {tokens.dtype}{list(tokens.shape)}; "
                "np.array(ids, np.int32)"
            )
        if len(tokens) == 0 or tokens.min() < 0 or tokens.max() >= self._vocab_size:
            raise ValueError(
                f"tokens of a request must be ids in 0..{self._vocab_size - 1}, at least one, "
                f"got {tokens.tolist()}"
            )
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {request.max_tokens}")
        if len(request.stop_ids) > self._config.max_stop_ids:
            raise ValueError(
                f"a request may have {self._config.max_stop_ids} stop ids, got "
                f"{len(request.stop_ids)}; raise --sampler.max-stop-ids"
            )
        if not 0 <= request.temperature < np.inf:  # NaN isn't either
            raise ValueError(f"temperature must be >= 0 and finite, got {request.temperature}")
        self._check_numbers(request)
        check_fits(request.sampling, self._sizes)
        if request.sampling.stop_strings and self._decode_text is None:
            raise ValueError(
                f"stop strings, got {request.sampling.stop_strings}, need a sampler that can turn "
                "ids into text; give it decode_text"
            )
        if request.version is not None:
            self._versions.check(request.version)

    def _check_numbers(self, request: SampleRequest) -> None:
        """Refuse what would fail on the device thread, where it would end the sampler."""
        numbers = [*request.key, *request.stop_ids, request.max_tokens, request.priority]
        if not all(isinstance(number, Integral) for number in numbers):
            raise ValueError(
                "key, stop_ids, max_tokens and priority of a request must be integers, got "
                f"{request.key}, {request.stop_ids}, {request.max_tokens}, {request.priority}"
            )
        if len(request.key) != 2 or not all(0 <= word < 2**32 for word in request.key):
            raise ValueError(f"key must be two numbers in 0..2**32 - 1, got {request.key}")
        if not all(0 <= stop_id < self._vocab_size for stop_id in request.stop_ids):
            raise ValueError(
                f"stop_ids must be ids in 0..{self._vocab_size - 1}, got {request.stop_ids}"
            )


def _with_constraint(request: SampleRequest, constraint: Constraint | None) -> SampleRequest:
    return replace(request, sampling=replace(request.sampling, constraint=constraint))


def _nothing_sampled() -> Completion:
    return Completion(
        tokens=np.zeros(0, np.int32),
        logprobs=np.zeros(0, np.float32),
        policy_versions=np.zeros(0, np.int32),
        finish=FinishReason.PROMPT_TOO_LONG,
    )
