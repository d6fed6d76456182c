"""Snapshots for a screen: of the analyzer, or of the collector if no analyzer answers."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

import anyio

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError, UnreachableError, ZeusStreamError
from zeus_stream.paths import ROOT_RUN, Places, places
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.transport.async_client import AsyncClient
from zeus_stream.transport.endpoints import Address, distant

ANSWER_S = 2.0
"""To wait for an answer of what has answered before."""
FIRST_S = 0.8
"""To wait for an answer of what has not: a socket file may be left of a service that was killed."""
PREFER_S = 0.2
"""To wait for an analyzer longer than for a collector."""
AWAY_NS = 5_000_000_000
"""An analyzer that stopped to answer is waited for so long, before the collector is asked."""


class Candidate(NamedTuple):
    """A service that may answer."""

    process: Literal["analyzer", "collector"]
    address: Address

    @property
    def may_be_there(self) -> bool:
        return not isinstance(self.address, Path) or os.access(self.address, os.R_OK | os.W_OK)


def candidates(environ: Mapping[str, str], address: str | None) -> tuple[Candidate, ...]:
    """Return the services that a screen may ask, the best first: an address, or this setup and root's."""
    here = places(environ)
    if address is not None:
        return (Candidate("analyzer", distant(address, here.keys).query),)
    setups = [here]
    if not environ.get("ZEUS_STREAM_DIR") and here.run != ROOT_RUN:
        setups.append(Places(ROOT_RUN, ROOT_RUN))
    return (
        *(Candidate("analyzer", setup.query) for setup in setups),
        *(Candidate("collector", setup.control) for setup in setups),
    )


class LiveSource:
    """Asks the best service that answers. Open within an ``async with`` block."""

    def __init__(self, which: Sequence[Candidate], host: str | None = None) -> None:
        """Prepare to ask. ``host``: rows of this host only; None: of all."""
        self._which = which
        self._host = host
        self._open = AsyncExitStack()
        self._clients: dict[Candidate, AsyncClient] = {}
        self._answering: Candidate | None = None
        self._lost: tuple[int, UnreachableError] | None = None
        """Since when an analyzer does not answer that did, and the sentence about it."""

    async def __aenter__(self) -> Self:
        for one in self._which:  # in this task: each is closed in the task that opened it
            client = AsyncClient(one.address, one.process)
            self._clients[one] = await self._open.enter_async_context(client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        return await self._open.__aexit__(kind, wrong, where)

    @property
    def analyzer(self) -> AsyncClient | None:
        """The analyzer that answers, for questions in SQL. None: none does."""
        if self._answering is None or self._answering.process != "analyzer":
            return None
        return self._clients[self._answering]

    async def look(self) -> Snapshot:
        """Return the live state. Raises UnreachableError and RefusedError."""
        known = self._answering
        if known is not None and known.process == "analyzer":
            try:
                return await self._ask(known, ANSWER_S)
            except UnreachableError as wrong:
                self._answering, self._lost = None, (monotonic_ns(), wrong)
                raise
        waited = self._lost is None or monotonic_ns() - self._lost[0] >= AWAY_NS
        try:
            snapshot = await self._first([one for one in self._which if waited or one.process == "analyzer"])
        except UnreachableError as nobody:
            raise (nobody if self._lost is None else self._lost[1]) from None
        if self._answering is not None and self._answering.process == "analyzer":
            self._lost = None
        return snapshot

    async def _ask(self, which: Candidate, timeout_s: float) -> Snapshot:
        return await self._clients[which].ask_now(self._host, timeout_s)

    async def _first(self, which: Sequence[Candidate]) -> Snapshot:
        """Ask all that may be there at once; return the answer of the best that answers soon."""
        there = [one for one in which if one.may_be_there]
        answers: dict[Candidate, Snapshot] = {}
        refused: list[ZeusStreamError] = []
        asked = len(there)

        async def ask(one: Candidate) -> None:
            nonlocal asked
            try:
                answers[one] = await self._ask(one, FIRST_S)
            except UnreachableError:
                return
            except RefusedError as wrong:
                refused.append(wrong)
            finally:
                asked -= 1
                if (one in answers and one.process == "analyzer") or not asked:
                    tasks.cancel_scope.cancel()
            if one in answers and one.process == "collector":
                await anyio.sleep(PREFER_S)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for one in there:
                tasks.start_soon(partial(ask, one))
        for one in there:
            if one in answers:
                self._answering = one
                return answers[one]
        if refused:
            raise refused[0]
        raise UnreachableError(_nobody(self._which))


def _nobody(which: Sequence[Candidate]) -> str:
    """Return the sentence for when nothing answers."""
    if isinstance(where := which[0].address, Path):
        return (
            f"top: could not begin: neither an analyzer nor a collector answers in {where.parent}."
            " Start a training with `zeus-stream run -- python train.py`, or the services with"
            " `zeus-stream collect` and `zeus-stream analyze`; or name one with --analyzer HOST:PORT."
        )
    return (
        f"top: could not begin: no analyzer answers at {where.address}."
        " Start it there with `zeus-stream analyze --listen`, or correct --analyzer."
    )
