"""The analyzers that have greeted this collector: who is asked, and which of them are replaced.

An analyzer that shares a site with others greets under an epoch, which grows when another process takes its
shard over. The highest epoch of each owner is on disk before its greeting is answered, so it outlives the
collector. What comes under a lower one is refused. An analyzer alone has no epoch.
"""

import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from zeus_stream.errors import StorageError
from zeus_stream.protocol.commands import Hello, ReleaseControl, RenewLeases, SetControl
from zeus_stream.protocol.fields import shard_of
from zeus_stream.protocol.pipelines import SetPlan

MAX_OWNERS = 1_000
"""Owners whose epoch is kept; of more, the one that greeted longest ago is forgotten."""
EPOCH_BITS = 32
"""A fence is ``epoch << EPOCH_BITS | number`` of an analyzer that has an epoch."""
W = TypeVar("W")


class AnalyzersKnown(Generic[W]):
    """Analyzers by owner. ``W``: the way to one."""

    def __init__(self, path: Path) -> None:
        """``path``: file of the epochs. Raises StorageError."""
        self._path, self._epochs = path, _read(path)
        """The highest of each owner."""
        self._ways: dict[str, tuple[Hello, W]] = {}
        """By owner, how it greeted last; the last to greet is the last."""
        self.stale = 0
        """Messages of analyzers that were replaced."""

    def greet(self, hello: Hello, way: W) -> str | None:
        """Take in a greeting. Return why it is refused, or None. Raises StorageError: it cannot be kept."""
        if (objection := self._objection(hello.name, hello.epoch)) is not None:
            return objection
        if hello.epoch is not None and hello.epoch > self._epochs.get(hello.name, -1):
            epochs = {owner: epoch for owner, epoch in self._epochs.items() if owner != hello.name}
            epochs[hello.name] = hello.epoch
            if len(epochs) > MAX_OWNERS:
                del epochs[next(iter(epochs))]
            _write(self._path, epochs)
            self._epochs = epochs
        self._ways.pop(hello.name, None)
        self._ways[hello.name] = hello, way
        if len(self._ways) > MAX_OWNERS:
            del self._ways[next(iter(self._ways))]
        return None

    def objection(self, request: SetControl | SetPlan | ReleaseControl | RenewLeases) -> str | None:
        """Return why a request comes from an analyzer that was replaced, or None."""
        if isinstance(request, RenewLeases):
            return self._objection(request.owner, request.epoch)
        known = request.owner in self._epochs
        return self._objection(request.owner, request.fence >> EPOCH_BITS if known else None)

    def _objection(self, owner: str, epoch: int | None) -> str | None:
        highest = self._epochs.get(owner)
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


def _read(path: Path) -> dict[str, int]:
    """Return the epochs in a file; none if there is no file. Raises StorageError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as wrong:
        raise StorageError(
            f"{path}: could not be read: {wrong}. Without it an analyzer that was replaced could command:"
            " remove the file once all analyzers have been restarted."
        ) from wrong


def _write(path: Path, epochs: dict[str, int]) -> None:
    """Keep the epochs, on disk before this returns. Raises StorageError."""
    partial = path.with_suffix(".new")
    try:
        with partial.open("wb") as file:
            file.write(msgspec.json.encode(epochs))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as wrong:
        raise StorageError(f"{path}: could not be written: {wrong}. Make room or give access.") from wrong
