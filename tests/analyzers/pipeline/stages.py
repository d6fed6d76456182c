"""A pipeline of arithmetic GPUs that obey commands for clocks: what a `PipelineRun` is told of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from msgspec.structs import replace

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Allocation, Fleet, Gpu
from analyzers.fleet.session import Session
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.known_pipelines import KnownPipelines
from analyzers.pipeline.pipeline_run import ClockSettled, PipelineRun, StageBegan, StageEnded, StageRan
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.pipeline_rows import PipelineRow, PlanRow
from analyzers.results.readings import READING
from analyzers.results.result import NOTHING, ApplyControl, ApplyPlan, Instruction, RestoreControl, Result
from analyzers.results.rows import Row, each_row
from benchmarks.pipeline.schedules import make_graph
from tests.messages import DEVICE_FOUND, RUN_STARTED
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, RunAdmitted
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan, encode_instruction, pack_rows
from zeus_stream.protocol.readings import ABSENT, Seen

CLOCKS_MHZ = tuple(range(1410, 600, -15))
WORK_S = {"forward": (0.020, 250.0), "backward": (0.040, 300.0)}
"""Seconds at the highest clock, and watts."""
WEIGHTS = (0.8, 1.0, 0.9, 1.1)
WAITING_W = 60.0
REFRESH_NS = 100_000_000
HOST = "host"


@dataclass
class Stages:
    """The world around one `PipelineRun`."""

    settings: PipelineSettings = field(default_factory=lambda: PipelineSettings(iterations=10))
    stamped_s: float | None = None
    """Of each instruction, as a script sees it that runs ahead of its GPU."""
    between_s: float = 0.0
    """Of an optimizer's step, after the pipeline's last instruction."""
    by_device: bool = False
    fewer: bool = False
    """The iterations from now on have half as many micro-batches."""
    stages: int = 4
    micro_batches: int = 8
    noise: float = 0.0
    refused: str | None = None
    """Why commands are refused."""
    late: float = 1.0
    """Times as long as planned that instructions under a plan take."""
    may_command: bool = True
    replicas: int = 1
    tensor_parallel: int = 1
    """Ranks of each stage of a replica, which do the same."""
    name: str = "run"
    prefix: str = "GPU-"
    """Of the name of each GPU; its rank follows."""
    known: KnownPipelines = field(default_factory=KnownPipelines)
    unheard: bool = False
    """Nothing is passed to the machine any more."""
    slow: dict[int, float] = field(default_factory=dict)
    """By replica, times as long as usual."""
    shares: dict[str, Allocation] = field(default_factory=dict)
    """Of power budgets, by GPU."""
    own_s: list[float] = field(default_factory=list)
    """Of the last iteration, by replica, without waiting for others."""
    spent_j: list[float] = field(default_factory=list)
    """By iteration, all GPUs."""
    took_s: list[float] = field(default_factory=list)
    """By iteration."""
    t_ns: int = 1_000_000_000_000
    iteration: int = 0
    pending: Pending = field(default_factory=lambda: Pending(at_once=True))
    locked_mhz: dict[str, int] = field(default_factory=dict)
    plans: dict[str, ApplyPlan] = field(default_factory=dict)
    sent: list[Instruction] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def columns(self) -> int:
        """Ranks of each stage."""
        return self.replicas * self.tensor_parallel

    def __post_init__(self) -> None:
        self.graph: PipelineGraph = make_graph("1f1b", self.stages, self.micro_batches)
        self.rng = np.random.default_rng(1)
        self.fleet = Fleet()
        ranks = range(self.stages * self.columns)
        self.sessions = [self._session(rank) for rank in ranks]
        self.run = PipelineRun(self.name, self.fleet, self.settings, self.shares, self.known, self.pending)
        self.energy_uj = {f"{self.prefix}{rank}": 0.0 for rank in ranks}
        self.read_ns = self.t_ns
        for rank, session in enumerate(self.sessions):
            began = PipelineBegan(
                t_ns=self.t_ns, stage=rank % self.stages, stages=self.stages,
                micro_batches=self.micro_batches, schedule="1f1b",
                tensor_parallel=self.tensor_parallel,
            )  # fmt: skip
            self._take(self.run.handle(StageBegan(session, began), self._now()))

    def _session(self, rank: int) -> Session:
        ranks = self.stages * self.columns
        started = replace(
            RUN_STARTED, t_ns=self.t_ns, rank=rank, world_size=ranks, gpus=("index:all",), pid=rank + 1
        )
        gpu = f"{self.prefix}{rank}"
        session = Session(f"s{rank}", HOST, 0, started, steps_kept=10)
        session.admitted = RunAdmitted(
            t_ns=self.t_ns, session=f"s{rank}", run="run", gpus=(gpu,), may_command=self.may_command,
            reason="" if self.may_command else "it only watches",
        )  # fmt: skip
        found = replace(
            DEVICE_FOUND, t_ns=self.t_ns, gpu=gpu, index=rank, name="A100", driver="simulated",
            min_limit_mw=None, max_limit_mw=None, default_limit_mw=None, found_limit_mw=None,
            graphics_clocks_mhz=CLOCKS_MHZ,
        )  # fmt: skip
        self.fleet.gpus[gpu] = Gpu(host=HOST, found=found)
        return session

    def _now(self) -> dict[str, int]:
        return {HOST: self.t_ns}

    def play(self, iterations: int) -> None:
        """Run so many iterations."""
        for _ in range(iterations):
            count = self.micro_batches // 2 if self.fewer else self.micro_batches
            self.graph = make_graph("1f1b", self.stages, count)
            played = [self._lengths(replica) for replica in range(self.columns)]
            self.own_s = [self.graph.makespan_s(lengths_s) for lengths_s, _ in played]
            makespan_s = max(self.own_s) + self.between_s
            ran, spent_j = list[IterationRan](), 0.0
            for replica, (lengths_s, powers_w) in enumerate(played):
                seen_s = [self.stamped_s or length_s for length_s in lengths_s]
                ran += self._ran(self.graph.starts_s(seen_s), seen_s)
                starts_s = self.graph.starts_s(lengths_s)
                spent_j += self._read(replica, starts_s, lengths_s, powers_w, makespan_s)
            while self.read_ns < self.t_ns + round(makespan_s * 1e9):
                self.read_ns += REFRESH_NS
            self.spent_j.append(spent_j)
            self.took_s.append(makespan_s)
            self.t_ns += round(makespan_s * 1e9)
            self.iteration += 1
            for session, event in () if self.unheard else zip(self.sessions, ran, strict=True):
                self._take(self.run.handle(StageRan(session, event), self._now()))

    def follow(self, more: int = 0) -> Self:
        """Run until a plan is followed, and so many iterations on top."""
        while self.state != "following":
            self.play(1)
        self.play(more)
        return self

    def end(self, stage: int) -> None:
        self._take(self.run.handle(StageEnded(self.sessions[stage]), self._now()))

    @property
    def state(self) -> str:
        return [row.state for row in self.rows if isinstance(row, PipelineRow)][-1]

    @property
    def reason(self) -> str:
        return [row.reason for row in self.rows if isinstance(row, PipelineRow)][-1]

    def last_plan(self) -> PlanRow:
        return [row for row in self.rows if isinstance(row, PlanRow)][-1]

    def time_and_power(self, stage: int, kind: str, clock_mhz: int) -> tuple[float, float]:
        """Return seconds and watts of an instruction."""
        work_s, top_w = WORK_S[kind]
        share = clock_mhz / CLOCKS_MHZ[0]
        time_s = work_s * WEIGHTS[stage % 4] * (0.7 / share + 0.3)
        return time_s, 80 + (top_w - 80) * share * max(0.7, share) ** 2

    def _lengths(self, replica: int) -> tuple[list[float], list[float]]:
        lengths_s, powers_w = [], []
        for each in self.graph.instructions:
            gpu = f"{self.prefix}{replica * self.stages + each.stage}"
            clock_mhz, late = self.locked_mhz.get(gpu, CLOCKS_MHZ[0]), 1.0
            plan = self.plans.get(gpu)
            if plan and plan.first_iteration is not None and self.iteration >= plan.first_iteration:
                code = encode_instruction(each.kind, each.micro_batch)
                fits = len(plan.codes) == len(self.graph.orders[each.stage])
                clock_mhz = plan.clocks_mhz[plan.codes.index(code)] if fits else max(plan.clocks_mhz)
                late = self.late
            if (share := self.shares.get(gpu)) is not None:  # the limit lowers the clock at once
                below = [mhz for mhz in CLOCKS_MHZ if mhz <= clock_mhz]
                drawn_w = {mhz: self.time_and_power(each.stage, each.kind, mhz)[1] for mhz in below}
                clock_mhz = next((m for m in below if drawn_w[m] <= share.most_mw / 1000), below[-1] // 2)
            time_s, power_w = self.time_and_power(each.stage, each.kind, clock_mhz)
            late *= self.slow.get(replica // self.tensor_parallel, 1.0)
            lengths_s.append(time_s * late * float(self.rng.normal(1, self.noise) if self.noise else 1.0))
            powers_w.append(power_w)
        return lengths_s, powers_w

    def _ran(self, starts_s: Sequence[float], lengths_s: Sequence[float]) -> list[IterationRan]:
        events = []
        for chain in self.graph.orders:
            spans = []
            for index in chain:
                each = self.graph.instructions[index]
                begin_ns = self.t_ns + round(starts_s[index] * 1e9)
                code = encode_instruction(each.kind, each.micro_batch)
                spans.append((code, begin_ns, begin_ns + round(lengths_s[index] * 1e9)))
            events.append(
                IterationRan(
                    t_ns=spans[0][1],
                    ended_ns=spans[-1][2],
                    iteration=self.iteration,
                    rows=pack_rows(spans[0][1], spans),
                    by_device=self.by_device,
                )
            )
        return events

    def _read(
        self,
        replica: int,
        starts_s: Sequence[float],
        lengths_s: Sequence[float],
        powers_w: Sequence[float],
        makespan_s: float,
    ) -> float:
        """Put readings of the iteration into the timelines. Return its energy, J."""
        total_j = 0.0
        end_ns = self.t_ns + round(makespan_s * 1e9)
        refreshes = np.arange(self.read_ns, end_ns, REFRESH_NS)
        for stage, chain in enumerate(self.graph.orders):
            gpu = f"{self.prefix}{replica * self.stages + stage}"
            edges, drawn = [0.0], []
            for index in chain:
                edges += [starts_s[index], starts_s[index] + lengths_s[index]]
                drawn += [WAITING_W, powers_w[index]]
            edges.append(makespan_s)
            drawn.append(WAITING_W)
            sums = np.concatenate([[0.0], np.cumsum(np.diff(edges) * drawn)])
            counted = np.interp((refreshes - self.t_ns) / 1e9, edges, sums) * 1e6
            rows = np.zeros(len(refreshes), READING)
            for name in READING.names or ():
                if name not in ("gpu", "seen"):
                    rows[name] = ABSENT
            rows["t_lo_ns"], rows["t_hi_ns"] = refreshes - 1000, refreshes
            rows["energy_mj"] = (self.energy_uj[gpu] + counted) / 1000
            rows["power_mw"] = 100_000
            rows["seen"] = Seen.CHANGED
            self.fleet.gpus[gpu].timeline.add(rows)
            self.energy_uj[gpu] += float(sums[-1]) * 1e6
            total_j += float(sums[-1])
        return total_j

    def _take(self, result: Result) -> None:
        """Keep rows, and carry out instructions at once."""
        self.rows += each_row(result.rows)
        for instruction in result.instructions:
            self.sent.append(instruction)
            follows = NOTHING
            match instruction:
                case ApplyControl() | ApplyPlan() if self.refused is not None:
                    note: ControlApplied | ControlRefused = ControlRefused(
                        t_ns=self.t_ns, command=instruction.command, gpu=instruction.gpu,
                        cause="permission", reason=self.refused,
                    )  # fmt: skip
                    follows = self.run.handle(ClockSettled(HOST, note), self._now())
                case ApplyControl() | ApplyPlan():
                    value = (
                        max(instruction.clocks_mhz)
                        if isinstance(instruction, ApplyPlan)
                        else instruction.value
                    )
                    self.locked_mhz[instruction.gpu] = value
                    if isinstance(instruction, ApplyPlan):
                        self.plans[instruction.gpu] = instruction
                    note = ControlApplied(
                        t_ns=self.t_ns, command=instruction.command, gpu=instruction.gpu,
                        control="graphics_clock", value=value,
                    )  # fmt: skip
                    self.pending.settle(HOST, note)
                    follows = self.run.handle(ClockSettled(HOST, note), self._now())
                case RestoreControl(command=command, gpu=gpu):
                    self.locked_mhz.pop(gpu, None)
                    self.plans.pop(gpu, None)
                    note = ControlApplied(
                        t_ns=self.t_ns, command=command, gpu=gpu, control="graphics_clock", value=UNLOCKED
                    )
                    self.pending.settle(HOST, note)
                case _:
                    raise AssertionError(f"a pipeline does not ask for {instruction}")
            self._take(follows)
