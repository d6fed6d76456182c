"""The profiles that runs of a pipeline have left for later runs of the same job. Pure.

    rows of instructions -> profiles by job and GPU model -> the profile that a later run starts from

A later run measures its first clock again, for a few iterations. It uses the profile if instructions take as
long as then; otherwise it profiles all clocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from analyzers.results.pipeline_rows import InstructionRow

MAX_KNOWN = 1_000
"""Profiles remembered; the oldest go."""
CONFIRMING = 6
"""Iterations that are measured again."""
ALIKE = 0.03
"""Share by which durations of instructions may differ."""


class PipelineIdentity(NamedTuple):
    """A pipeline whose instructions can be compared."""

    job: str
    gpu_model: str
    stages: int


class KnownPipelines:
    """The profiles of a site."""

    def __init__(self, rows: Iterable[InstructionRow] = ()) -> None:
        """``rows``: of all runs, from before this analyzer started."""
        self.forgotten_wall_ns: Mapping[str, int] = {}
        """By job: profiles measured until then are not used (UTC, ns)."""
        self._of: dict[PipelineIdentity, Sequence[InstructionRow]] = {}
        by_run: dict[str, list[InstructionRow]] = {}
        for row in rows:
            by_run.setdefault(row.run, []).append(row)
        for of in sorted(by_run.values(), key=lambda each: each[0].measured_wall_ns):
            self.add(of)

    def add(self, rows: Sequence[InstructionRow]) -> None:
        """Remember the profile of one run; it takes the place of an earlier one."""
        identity = PipelineIdentity(rows[0].job, rows[0].gpu_model, len({row.stage for row in rows}))
        self._of.pop(identity, None)
        self._of[identity] = rows
        if len(self._of) > MAX_KNOWN:
            del self._of[next(iter(self._of))]

    def find(self, identity: PipelineIdentity) -> Sequence[InstructionRow]:
        """Return the profile that a run starts from; empty: none is known."""
        known = self._of.get(identity, ())
        forgotten_wall_ns = self.forgotten_wall_ns.get(identity.job, 0)
        return known if known and known[0].measured_wall_ns > forgotten_wall_ns else ()


def is_alike(
    known: Sequence[InstructionRow], measured: Mapping[int, Mapping[tuple[str, int, int], Sequence[float]]]
) -> bool:
    """Tell whether instructions take as long as then.

    ``measured``: s, by stage and (kind, chunk, MHz).
    """
    then = {(row.stage, row.kind, row.chunk, row.clock_mhz): row.time_s for row in known}
    for stage, of in measured.items():
        for name, durations_s in of.items():
            time_s = then.get((stage, *name))
            if time_s is None or abs(median(durations_s) / time_s - 1) > ALIKE:
                return False
    return bool(measured)
