"""The live state as bytes: made at most a few times a second, however many ask. Pure."""

from collections.abc import Callable

from msgspec.structs import replace

from zeus_stream.protocol import codec
from zeus_stream.protocol.queries import No
from zeus_stream.protocol.snapshots import AskNow, Snapshot

KEPT_NS, KEPT_ROW_NS = 400_000_000, 400_000
"""An answer is given again for so long, and for so much longer for each row. So answers take a twentieth of a
core at most, however large the site is and however many ask."""
MAX_KEPT = 64
"""Answers of different questions that are kept; the oldest goes."""
MAX_BYTES = codec.MAX_BYTES - 65_536


class LiveAnswers:
    """Answers to `AskNow`."""

    def __init__(self, snapshot: Callable[[str | None], Snapshot]) -> None:
        """Begin. ``snapshot`` returns the state of the site, or of one host."""
        self._snapshot = snapshot
        self._kept: dict[str | None, tuple[int, bytes]] = {}
        """By question: until when it is kept, and the answer."""

    def answer(self, asked: AskNow, now_ns: int) -> bytes:
        """Return the answer to one question, as it is sent."""
        until_ns, data = self._kept.get(asked.host, (now_ns, b""))
        if now_ns >= until_ns:
            try:
                snapshot = self._snapshot(asked.host)
                data = encoded(snapshot)
            except Exception as wrong:  # noqa: BLE001  (no question ends a service: who asks reads why)
                return codec.encode(No(f"now: could not be answered: {repr(wrong)[:500]}. Report it."))
            rows = len(snapshot.gpus) + len(snapshot.parts) + len(snapshot.runs)
            self._kept.pop(asked.host, None)
            self._kept[asked.host] = now_ns + KEPT_NS + rows * KEPT_ROW_NS, data
            if len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return data


def encoded(snapshot: Snapshot) -> bytes:
    """Return a snapshot as one message. Of one that is too large, rows are left out and counted."""
    data = codec.encode(snapshot)
    while len(data) > MAX_BYTES:
        gpus = snapshot.gpus[: len(snapshot.gpus) // 2]
        runs = snapshot.runs[: len(snapshot.runs) // 2]
        parts = snapshot.parts[: len(snapshot.parts) // 2]
        if not (gpus or runs or parts):
            return codec.encode(No("now: could not be answered: it is too large. Ask for one host."))
        snapshot = replace(
            snapshot,
            gpus=gpus,
            runs=runs,
            parts=parts,
            gpus_left_out=snapshot.gpus_left_out + len(snapshot.gpus) - len(gpus),
            runs_left_out=snapshot.runs_left_out + len(snapshot.runs) - len(runs),
        )
        data = codec.encode(snapshot)
    return data
