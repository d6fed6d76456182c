"""A site with everything that goes wrong: processes that are killed, and all that lies between them.

    Trainer -- stream --> Collector (leases, log on disk) -- feed --> Analyzer (archive, interpreter)
    (outbox)  <- acks --     ^                            <-- control (fetch, commands, replies)
                             '- Device (arithmetic), restore record, Guard

What is pure is the real thing: outbox, sessions, leases, log, sequencer, interpreter, the GPU. What waits
(sockets, threads) is played here: a stream is ordered and is cut, the feed loses, repeats and delays. So is
DuckDB, unless it is asked for (``stored``), which takes ten times as long. Processes die between two of their
actions, disks fill, log tails are damaged, wall clocks jump, the host is suspended, somebody else sets
limits. The truth is known, and compared after every step.

    python -m benchmarks.faults.exercises --only worlds --first-world 7 --worlds 1 [--stored]
"""

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from analyzers.interpreter.interpreter import Interpreter
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import GapRow, WindowRow
from collectors.controls import lease_messages
from collectors.controls.value_changes import put_back
from collectors.devices.simulated_spec import parse
from tests.simulation.archives_of_worlds import HOST, Archive, Stored
from tests.simulation.killable_analyzer import Analyzer
from tests.simulation.killable_collector import Collector
from tests.simulation.killable_trainer import Trainer
from tests.simulation.processes import MS, S, Stream
from tests.simulation.simulated_site import START_NS, Host, Site, Training
from tests.simulation.world import Output, outputs_of
from zeus_stream.errors import DeviceError
from zeus_stream.protocol.events import Event, Metric, RunEnded, RunStarted, StepBoundary
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Events, Frame
from zeus_stream.protocol.notes import ClockAnchored

TROUBLE_NS = 8 * S
"""Things go wrong for so long; then all heals, and what should be there must be."""
HEAL_NS = 9 * S
FOUND_MW = 220_000
RESTORED_NS = 2 * S
PLAN = RunSettings(
    selector=selectors.parse("energy"),
    stride_mw=60_000,
    warmup_steps=1,
    profile_steps=4,
    settle_ns=0,
    refreshes=2,
    exhaustive=True,
)


@dataclass
class Report:
    """The counts of a simulation."""

    kills: Counter[str] = field(default_factory=Counter)
    emitted: int = 0
    archived: int = 0
    twice: int = 0
    """Under two sessions: their log was damaged between writing and acknowledging."""
    lost: int = 0
    """Acknowledged, not archived: their log was damaged, as a row in gaps says."""
    gaps: int = 0
    found: int = 0
    """Times a limit found was written down, before it was changed."""
    sets: int = 0
    """Of a limit, below the one found."""
    restored: int = 0
    """Times the limit was back at the one found."""
    slowest_restore_s: float = 0.0
    """Back at the one found, after a kill."""
    windows: int = 0
    suspends: int = 0
    wall_steps: int = 0


class TroubledWorld(Site[Host]):
    """One host, its GPU and its three processes; ``seed`` decides what goes wrong, and when."""

    def __init__(
        self, seed: int, path: Path, *, wall_steps: bool = True, archive: Archive | None = None
    ) -> None:
        """``path``: of the log. Without ``wall_steps`` the wall clock goes on where it would have jumped."""
        super().__init__(Training("imagenet", 0.05, steps=10**9))
        self.plan = PLAN
        self.rng = Random(seed)
        self.path = path
        self.report = Report()
        self._numbers = count(1)
        self._wall_step_ns = 0
        self._wall_steps = wall_steps
        self._healed = False
        self._lowered = False
        self._bereft_ns: int | None = None
        """Since when the limit in force should return."""
        faults = self.rng.choice(["", "", ",fault=reset@3", ",fault=lost@2-3.5", ",fault=timeout@4-5"])
        self._reset_ns = START_NS + 4 * S if "reset" in faults else 0
        """The counter has started over by then, and somebody has seen it."""
        spec = f"simulated:v100,seed={seed},noise=0.05,period_ms=100{faults}"
        self.host = Host(self, HOST, parse(spec), self._put, found_mw=FOUND_MW)
        self.hosts = self.ranks = [self.host]
        [(self.name_of_gpu, self.gpu)] = self.host.gpus.items()
        self.ceiling_mw = FOUND_MW
        """What an administrator has set last; nobody may go above it."""
        self._faulty = "lost" in faults or "timeout" in faults
        """The device cannot be restored at times."""
        self.record: lease_messages.Limits | None = None
        self.settled: str | None = None
        self.guarding = False
        self.logs_lost = 0
        self.streams: list[Stream] = []
        self.archive = archive or Archive()
        self.windows: dict[tuple[object, ...], WindowRow] = {}
        self.trainers: list[Trainer] = []
        self.collector = Collector(self, next(self._numbers))
        self.analyzer = Analyzer(self, next(self._numbers))
        self._train()

    def wall_ns(self) -> int:
        return 1_700_000_000 * S + self.now_ns + self._wall_step_ns

    def run(self) -> Report:
        """Let things go wrong, let them heal, and compare. Raises AssertionError."""
        self._plan_trouble()
        self.at(START_NS + TROUBLE_NS, self._heal)
        while not self._healed:
            self.do_next()
        self._until(self.now_ns + HEAL_NS // 2)
        self._publish(RunEnded)
        self._stop()
        self._until(self.now_ns + HEAL_NS // 2)
        logged = self.collector.log.extent
        self._until(self.now_ns + 2 * S)
        assert self.archive.logs.get(logged.log_id, 0) >= logged.next_offset, "the archive is behind"
        self._compare()
        self.collector.log.die()
        return self.report

    def _until(self, end_ns: int) -> None:
        while self._due[0][0] <= end_ns:
            self.do_next()
        self.now_ns = end_ns

    def do_next(self) -> None:
        super().do_next()
        self._look_at_limit()

    def _look_at_limit(self) -> None:
        requested_mw = self.gpu.requested_mw
        lowered, self._lowered = self._lowered, requested_mw != self.ceiling_mw
        self.report.restored += lowered and not self._lowered
        assert requested_mw <= self.ceiling_mw, "the limit is above what was found"
        assert self.record is not None or not self._lowered, "a limit is in force without a restore record"
        if self._bereft_ns is not None:
            waited_ns = self.now_ns - self._bereft_ns
            assert waited_ns <= RESTORED_NS or self._faulty, "a limit is in force that nobody wants"
            if requested_mw == self.ceiling_mw:
                self._bereft_ns = None
                self.report.slowest_restore_s = max(self.report.slowest_restore_s, waited_ns / S)

    def _bereave(self) -> None:
        """Somebody died without whom no limit of ours may stay."""
        if self._bereft_ns is None and self.gpu.requested_mw != self.ceiling_mw:
            self._bereft_ns = self.now_ns

    # what goes wrong

    def _plan_trouble(self) -> None:
        troubles = (
            (4, self._kill_collector),
            (4, self._kill_analyzer),
            (2, self._kill_trainer),
            (3, self._cut),
            (1, self._fill_disk),
            (1, self._step_wall_clock),
            (1, self._suspend),
            (0.5, self._set_by_other),
        )
        actions, weights = [action for _, action in troubles], [weight for weight, _ in troubles]
        for _ in range(self.rng.randrange(3, 12)):
            at_ns = START_NS + round(self.rng.uniform(0.2, TROUBLE_NS / S - 1) * S)
            [action] = self.rng.choices(actions, weights)
            self.at(at_ns, action)

    def _kill_collector(self) -> None:
        if not self.collector.alive:
            return
        self.report.kills["collector"] += 1
        self.collector.kill()
        damaged = self.rng.random() < 0.15
        if damaged:
            self._damage_log()
        if self.rng.random() < 0.8:  # else the guard died as well
            self.guarding = True
            self._bereave()
            self.at(self.now_ns + round(self.rng.uniform(50, 800) * MS), self._guard)
        self.at(self.now_ns + round(self.rng.uniform(1, 2_000) * MS), self._start_collector)

    def _start_collector(self) -> None:
        if not self.collector.alive:
            self.collector = Collector(self, next(self._numbers))

    def _guard(self) -> None:
        """Do what the guard process does at the death of its collector."""
        if self.record is not None and self.settled is None:
            try:
                done = put_back(self.gpu.device, self.record)
            except DeviceError:
                self.at(self.now_ns + 100 * MS, self._guard)
                return
            self.settled = f"restored to {done.requested} mW by the guard"
        self.guarding = False

    def _damage_log(self) -> None:
        wal = self.path.with_name(self.path.name + "-wal")
        if wal.exists() and (content := bytearray(wal.read_bytes())):
            content[-self.rng.randrange(1, min(len(content), 5_000) + 1)] ^= 1 << self.rng.randrange(8)
            wal.write_bytes(content)

    def _kill_analyzer(self) -> None:
        if self.analyzer.alive:
            self.report.kills["analyzer"] += 1
            self.analyzer.kill()
            self.archive.die()
            self.at(self.now_ns + round(self.rng.uniform(1, 2_500) * MS), self._start_analyzer)

    def _start_analyzer(self) -> None:
        if not self.analyzer.alive:
            self.analyzer = Analyzer(self, next(self._numbers))

    def _kill_trainer(self) -> None:
        trainer = self.trainers[-1]
        if trainer.alive:
            self.report.kills["publisher"] += 1
            self._stop()
            trainer.kill()
            self.host.stop_work(self.training.workload)
            if self.collector.alive:
                self._bereave()
            self.at(self.now_ns + round(self.rng.uniform(1, 500) * MS), self._train)

    def _train(self) -> None:
        if not self.trainers or not self.trainers[-1].alive:
            number = next(self._numbers)
            self.trainers.append(Trainer(self, f"run-{number}", number))
            self.step, self.ended = 0, False
            self._later(1, self._begin_loop)

    def _cut(self) -> None:
        """Cut every connection; new ones are made when somebody notices."""
        for stream in self.streams:
            stream.open = False
        self.streams.clear()
        if self.collector.alive:
            self.collector.connection.open = False
            self.collector.connection = Stream(self, self.rng)

    def _fill_disk(self) -> None:
        self.collector.log.full = True

        def empty() -> None:
            self.collector.log.full = False

        self.at(self.now_ns + round(self.rng.uniform(100, 1_500) * MS), empty)

    def _suspend(self) -> None:
        """All clocks jump; what was due in between is done late, in the order in which it was due."""
        if self.now_ns < self._reset_ns:
            return  # a counter that began again unseen, and has passed its old value, cannot be told from one
            # that went on: it is no promise of ours
        self.report.suspends += 1
        slept_ns = round(self.rng.uniform(0.5, 20) * S)
        awake_ns = self.now_ns + slept_ns
        self.sleep(awake_ns)
        if self._bereft_ns is not None:
            self._bereft_ns += slept_ns

    def _step_wall_clock(self) -> None:
        self.report.wall_steps += 1
        step_ns = self.rng.choice([-1, 1]) * self.rng.randrange(3600 * S, 24 * 3600 * S)
        self._wall_step_ns += step_ns if self._wall_steps else 0
        if self.collector.alive:
            self.collector.say(ClockAnchored(self.now_ns, self.wall_ns(), 1))

    def _set_by_other(self) -> None:
        self._bereft_ns = None
        self.ceiling_mw = self.rng.choice([140_000, 180_000, 240_000])
        self.gpu.loads.set_limit(self.ceiling_mw, self.now_ns)

    def _heal(self) -> None:
        self._healed = True
        self.collector.log.full = False
        self._start_collector()
        self._start_analyzer()
        self._train()

    # what is under way

    def _put(self, event: Event) -> None:
        """Have the training that lives emit an event, and a metric with each step."""
        self.trainers[-1].put(event)
        if isinstance(event, StepBoundary):
            self.trainers[-1].put(Metric(self.now_ns, "step", float(event.index)))

    def feed(self, frame: Frame) -> None:
        """Carry a frame to the analyzer: perhaps late, perhaps twice, perhaps never."""
        copies = 1 if self._healed else self.rng.choices([0, 1, 2], [0.1, 0.85, 0.05])[0]
        for _ in range(copies):
            self.at(self.now_ns + round(self.rng.expovariate(1 / (3 * MS))), lambda: self._arrive(frame))

    def _arrive(self, frame: Frame) -> None:
        if self.analyzer.alive:
            self.analyzer.feed(frame)

    def analyzer_receives(self, message: Any) -> None:
        if self.analyzer.alive:
            self.analyzer.receive(message)

    def derived(self, output: Output) -> None:
        """Look at what the interpreter makes of it."""
        if isinstance(output, GapRow):
            self.report.gaps += 1
        if not isinstance(output, WindowRow):
            return
        self.windows[output.session, output.kind, output.index, output.gpu] = output
        if output.energy_j is None:
            assert output.quality != "ok", "energy is missing without a reason"
            return
        assert output.energy_low_j is not None
        assert output.energy_high_j is not None
        assert 0 <= output.energy_low_j <= output.energy_j <= output.energy_high_j, "impossible energy"
        truth_j = self.gpu.device.energy_mj(output.begin_ns, output.end_ns) / 1000
        slack_j = 0.01 + 0.001 * truth_j
        within = output.energy_low_j - slack_j <= truth_j <= output.energy_high_j + slack_j
        assert within, f"{truth_j} J is not within {output.energy_low_j} to {output.energy_high_j}: {output}"

    # what must be there in the end

    def _compare(self) -> None:
        report = self.report
        archived: Counter[Event | Unknown] = Counter()
        for _, body in self.archive.frames:
            if isinstance(body, Events):
                archived.update(event for event in body.events if not isinstance(event, RunStarted))
        for trainer in self.trainers:
            acknowledged = trainer.outbox.acknowledged - (len(trainer.sessions) - 1)
            emitted = [event for event in trainer.emitted if not isinstance(event, RunStarted)]
            report.emitted += len(emitted)
            times = [archived[event] for event in emitted]
            report.twice += sum(number - 1 for number in times if number)
            report.lost += times[: max(0, acknowledged - 1)].count(0)
            assert self.logs_lost or times == sorted(times, reverse=True), "a hole among the events of a run"
            if trainer.alive:
                assert trainer.outbox.waiting == 0, "events are not delivered though all is well"
        assert self.logs_lost or report.twice == 0, "an event is archived twice"
        assert self.logs_lost or report.lost == 0, "an acknowledged event is not archived"
        everything = {event for trainer in self.trainers for event in trainer.emitted}
        assert set(archived) <= everything, "an event is archived that nobody emitted"
        report.archived = archived.total()
        log = self.collector.log
        stored = {frame.offset: frame for frame, _ in self.archive.frames if frame.log_id == log.log_id}
        for offset in range(0, self.archive.logs[log.log_id], 1000):
            for frame in log.fetch(offset, 1000, 10**9):
                assert stored.get(frame.offset, frame) == frame, "the archive has another frame than the log"
        lost_logs = {gap.log_id for gap in self.archive.breaks}
        assert len(self.archive.logs) - 1 <= len(lost_logs), "a log was left without a gap"
        assert self.gpu.requested_mw == self.ceiling_mw, "the limit found has not returned"
        assert self.record is None, "a restore record is left"
        report.windows = len(self.windows)
        again = Interpreter(self.plan)
        once: dict[tuple[object, ...], WindowRow] = {
            (row.session, row.kind, row.index, row.gpu): row
            for frame, body in self.archive.frames
            for row in outputs_of(again, frame, body)
            if isinstance(row, WindowRow)
        }
        assert once.keys() == self.windows.keys(), "restarts of the analyzer have lost or invented windows"
        for key, row in self.windows.items():
            assert _alike(row, once[key]), "restarts of the analyzer have changed what is derived"
        self.archive.compare(self.windows, self.plan)


def _alike(row: WindowRow, other: WindowRow) -> bool:
    """Tell whether two rows say the same. What was learned by then may shape an energy, within its bounds."""
    if row.energy_j is None or row.energy_low_j is None or row.energy_high_j is None:
        return row == other
    learned = replace(
        other,
        energy_j=row.energy_j,
        energy_p2_5_j=row.energy_p2_5_j,
        energy_p97_5_j=row.energy_p97_5_j,
        phase_coverage=row.phase_coverage,
        estimator=row.estimator,
        quality=row.quality,
    )
    bounded = other.energy_j is not None and row.energy_low_j <= other.energy_j <= row.energy_high_j
    return learned == row and bounded


def run(seed: int, *, stored: bool = False) -> Report:
    """Run the world of one seed; ``stored``: with DuckDB. Raises AssertionError, which says how to repeat."""
    with tempfile.TemporaryDirectory() as made:
        try:
            archive = Stored(Path(made) / "energy.duckdb") if stored else Archive()
            return TroubledWorld(seed, Path(made) / "log.sqlite", archive=archive).run()
        except AssertionError as wrong:
            again = f"--only worlds --first-world {seed} --worlds 1{' --stored' if stored else ''}"
            wrong.add_note(f"Repeat it with: python -m benchmarks.faults.exercises {again}")
            raise
