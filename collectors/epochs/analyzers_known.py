"""The analyzers that have greeted this collector: who is asked, and which of them are replaced. Pure.

An analyzer that shares a site with others greets under an epoch, which grows when another process takes its
shard over. The highest epoch of each owner is kept beyond a restart of the collector; what comes under a
lower one is refused. An analyzer alone has no epoch.
"""

import json
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from zeus_stream.protocol.commands import Hello, ReleaseControl, RenewLeases, SetControl
from zeus_stream.protocol.fields import shard_of
from zeus_stream.protocol.pipelines import SetPlan

MAX_OWNERS = 1_000
"""Owners whose epoch is kept; of more, the one that greeted longest ago is forgotten."""
EPOCH_BITS = 32
"""A fence is ``epoch << EPOCH_BITS | number`` of an analyzer that has an epoch."""
W = TypeVar("W")


@dataclass(slots=True)
class AnalyzersKnown(Generic[W]):
    """Analyzers by owner. ``W``: the way to one."""

    epochs: dict[str, int] = field(default_factory=dict)
    """The highest of each owner."""
    _ways: dict[str, tuple[Hello, W]] = field(default_factory=dict)
    """By owner, how it greeted last; the last to greet is the last."""
    stale: int = 0
    """Messages of analyzers that were replaced."""

    def greet(self, hello: Hello, way: W) -> str | None:
        """Take in a greeting. Return why it is refused, or None."""
        if (objection := self._objection(hello.name, hello.epoch)) is not None:
            return objection
        if hello.epoch is not None and hello.epoch > self.epochs.get(hello.name, -1):
            self.epochs.pop(hello.name, None)
            self.epochs[hello.name] = hello.epoch
            if len(self.epochs) > MAX_OWNERS:
                del self.epochs[next(iter(self.epochs))]
        self._ways.pop(hello.name, None)
        self._ways[hello.name] = hello, way
        if len(self._ways) > MAX_OWNERS:
            del self._ways[next(iter(self._ways))]
        return None

    def objection(self, request: SetControl | SetPlan | ReleaseControl | RenewLeases) -> str | None:
        """Return why a request comes from an analyzer that was replaced, or None."""
        if isinstance(request, RenewLeases):
            return self._objection(request.owner, request.epoch)
        known = request.owner in self.epochs
        return self._objection(request.owner, request.fence >> EPOCH_BITS if known else None)

    def _objection(self, owner: str, epoch: int | None) -> str | None:
        highest = self.epochs.get(owner)
        if highest is None or (epoch is not None and epoch >= highest):
            return None
        self.stale += 1
        was = "no epoch" if epoch is None else f"epoch {epoch}"
        return (
            f"{owner}: could not be obeyed under {was}: another process has taken it over under epoch"
            f" {highest}. Stop this one; it decides nothing any more."
        )

    def way(self, job: str) -> W | None:
        """Return the way to the analyzer that decides on a job; None: none has greeted."""
        for hello, way in reversed(self._ways.values()):
            if hello.shards is None or hello.shard == shard_of(job, hello.shards):
                return way
        return None

    def ways(self) -> tuple[tuple[Hello, W], ...]:
        """Return how each analyzer greeted last, and the way to it."""
        return tuple(self._ways.values())

    @property
    def any(self) -> bool:
        """An analyzer has greeted."""
        return bool(self._ways)

    def to_json(self) -> str:
        """Return the epochs as text."""
        return json.dumps(self.epochs)


def epochs_of(text: str) -> dict[str, int]:
    """Return the epochs that `AnalyzersKnown.to_json` wrote. Raises ValueError."""
    epochs = json.loads(text)
    if not isinstance(epochs, dict) or not all(type(epoch) is int for epoch in epochs.values()):
        raise ValueError("it has no epochs")
    return {str(owner): epoch for owner, epoch in epochs.items()}
