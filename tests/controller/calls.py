"""The calls of fakes, each of which waits until a test answers it."""

import trio

from tests.controller.schedules import FATAL, Planned, escape

CALLS = ("step", "token", "request", "reset", "open", "close")
QUICK = ("request", "reset", "open", "close")  # return at once, if nothing else is planned
HOLD = ("hold", "raise when cancelled", "late when cancelled")
FAULTS = (*HOLD, "raise", "escape")


class Call:
    """One call that waits.

    Attributes:
      manner: what becomes of it: "return", or one of `FAULTS`.
      held: it is answered by name only, not with all others.
    """

    def __init__(self, name, manner):
        self.name = name
        self.manner = manner
        self.held = manner in HOLD
        self._answered = trio.Event()

    def answer(self):
        self._answered.set()

    async def wait(self):
        try:
            await self._answered.wait()
        except trio.Cancelled:
            await self._when_cancelled()
            raise
        if self.manner == "raise":
            raise Planned(self.name)
        if self.manner == "escape":
            await escape()

    async def _when_cancelled(self):
        if self.manner == "raise when cancelled":
            raise Planned(f"{self.name} when cancelled") from None
        if self.manner == "late when cancelled":
            with trio.CancelScope(shield=True):
                await self._answered.wait()


class Calls:
    """All calls that wait, and what is planned for the next ones of each name.

    Attributes:
      waiting: the oldest first.
      planned: the manner of the next call of a name.
      troubled: the names of the calls that were held or that raised.
    """

    def __init__(self):
        self.waiting = []
        self.planned = {}
        self.troubled = set()

    async def at_env(self, name, task, step):
        await self._wait(name)

    async def at_policy(self, name, detail):
        await self._wait(name)

    async def _wait(self, name):
        if name in QUICK and name not in self.planned:
            return await trio.lowlevel.checkpoint()
        call = Call(name, self.planned.pop(name, "return"))
        if call.manner != "return":
            self.troubled.add(name)
        self.waiting.append(call)
        try:
            await call.wait()
        finally:
            self.waiting.remove(call)

    def answer_all(self, *, held=False):
        """Answer what isn't held, or all."""
        for call in self.waiting:
            if held or not call.held:
                call.answer()

    def hold(self, call):
        """Let a call return only when it is answered by itself, or at the end."""
        call.held = True
        self.troubled.add(call.name)

    def may_fail(self):
        """The stages that may have failed."""
        return {stage for name, stage in FATAL.items() if name in self.troubled}
