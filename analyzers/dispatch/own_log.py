"""The analyzer's own log: what it states itself, in the stream of what it received."""

import socket
from collections.abc import Iterable

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from analyzers.results.result import OWN
from analyzers.results.rows import Derived, OwnUseRow, RunRow
from zeus_stream.clock import monotonic_ns
from zeus_stream.own_cost import PAUSE_S, OwnEnergy, OwnUseMeter, RecordTimes
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Break, Frame
from zeus_stream.protocol.notes import Note, Notes
from zeus_stream.settings import Settings


class OwnLog:
    """The end of the log."""

    def __init__(self, log_id: str, offset: int, send: MemoryObjectSendStream[list[Frame] | Break]) -> None:
        """``offset``: of the next frame. ``send``: takes the frames."""
        self._log_id, self._offset, self._send = log_id, offset, send
        self.begun = offset > 0
        """An earlier analyzer wrote into it."""

    async def state(self, topic: str, note: Note) -> None:
        """Add a note."""
        frame = Frame(
            log_id=self._log_id,
            offset=self._offset,
            host=OWN,
            t_ns=monotonic_ns(),
            topic=topic,
            body=codec.encode(Notes((note,))),
        )
        self._offset += 1
        await self._send.send([frame])


class OwnUseLog:
    """Records of the analyzer's own use."""

    def __init__(self, settings: Settings) -> None:
        """Begin now. ``settings`` may name the host, as those of its collector do."""
        self._meter = OwnUseMeter("analyzer", (settings.host or socket.gethostname())[:100])
        self._times = RecordTimes()
        self._energy: OwnEnergy | None = None
        self._reason = "the first record comes after a minute, or at the end of a run"

    def take(self, rows: Iterable[Derived]) -> None:
        """Note the rows of runs that have ended, for the next record is due, and those of earlier records."""
        for row in rows:
            match row:
                case RunRow(ended_ns=int()):
                    self._times.run_ended()
                case OwnUseRow(service="analyzer", energy_low_j=float(low_j), energy_high_j=float(high_j)):
                    more = OwnEnergy(low_j, high_j)
                    self._energy = more if self._energy is None else self._energy + more
                case OwnUseRow(service="analyzer"):
                    self._reason = row.reason
                case _:
                    pass

    @property
    def energy(self) -> str:
        """The energy so far, or why it is not known."""
        return f"not known: {self._reason}" if self._energy is None else self._energy.words

    async def publish(self, log: OwnLog) -> None:
        reason = "no collector of this host can read its CPUs"
        while True:
            await self._times.next()
            await log.state("own use", self._meter.record(None, reason))
            await anyio.sleep(PAUSE_S)
