"""A site of simulated GPUs that follows a day of a grid signal, in virtual time.

    python -m benchmarks.site.load_target [--gpus 10000] [--hours 24] [--seed 1]

Jobs of 8 to 256 GPUs come, run for some hours and go; each is a workload of Zeus's published power traces
of an A40. The product's enforcer shares the watts out by profiles with 1 %
noise, as earlier runs left them, and sees the power of each GPU; each command is obeyed within a step. The
signal is made here: two peaks of demand a day in steps of an hour, a regulation signal every 5 minutes
(autoregressive), and three calls of the grid: -20 % for an hour, -30 % for 15 minutes, +10 % for 30 minutes,
each at once. `--seed` makes another day and other jobs.

Ramps are of the target and of what was drawn, from minute to minute. The best possible knows the true curve
of each job of a minute, sets any limit without delay, and draws what was drawn (a fractional knapsack over
the concave hull of each job's power and speed).
"""

import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Fleet
from analyzers.fleet.session import Session
from analyzers.power_budget import following
from analyzers.power_budget.allocation import in_force
from analyzers.power_budget.enforcer import CommandSettled, Enforcer, FrameHandled, RunsChanged
from analyzers.power_limit.limit_search import make_plan
from analyzers.power_limit.profiles import KnownProfiles
from analyzers.power_limit.run import Run
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.search.levels import limit_levels
from analyzers.power_limit.selectors import Trial, parse
from analyzers.power_limit.visits import limits_mw
from analyzers.results.memory import Memory
from analyzers.results.result import ApplyControl, RestoreControl, Result
from benchmarks.harness import judged, options
from benchmarks.noise.published import Curve, curves
from tests.analyzers.readings import readings, row
from tests.messages import DEVICE_FOUND, RUN_STARTED
from zeus_stream.protocol.notes import Budget, BudgetsSet, ControlApplied
from zeus_stream.protocol.readings import Seen

S = 1_000_000_000
STEP_S = following.STEP_NS // S
HOST_GPUS = 8
LEAST_MW, MOST_MW, IDLE_MW = 100_000, 300_000, 30_000
SIZES, OF_GPUS = (1, 1, 2, 2, 4, 8, 16, 32), 10_000
"""Hosts of a job on a site of so many GPUs; on a smaller one jobs are smaller as well."""
GROUPS = ("prod", "eval", "dev")
NOISE = 0.01
PLAN = RunSettings(selector=None)
FEASIBLE = (0.62, 0.86)
"""Night and peak of the signal, as a share of what the site draws without a limit."""
LEAST_SHARE = 0.6
"""Of the signal: least limits alone draw 0.55."""
RAMP = 0.01
"""Of what the site draws without a limit, a minute."""
EVENTS = ((7.5, 60, -0.20), (13.25, 15, -0.30), (18.75, 30, 0.10))
"""Hour, minutes, and by how much."""
GOAL_SHARE, GOAL_MINUTES = 0.02, 0.95


class Job(Struct, kw_only=True):
    """A training on whole hosts."""

    run: Run
    curve: Curve
    gpus: tuple[str, ...]
    ends_s: float

    def at(self, limit_mw: float) -> tuple[float, float]:
        """Return power of a GPU, mW, and its speed as a share of that at the highest limit."""
        limits = self.curve.limits_mw[::-1]
        power = [mj / ns * 1e9 for mj, ns in zip(self.curve.step_mj, self.curve.step_ns, strict=True)][::-1]
        speed = [self.curve.step_ns[0] / ns for ns in self.curve.step_ns][::-1]
        return float(np.interp(limit_mw, limits, power)), float(np.interp(limit_mw, limits, speed))


class Minute(Struct):
    """Sums of a minute, each over its steps."""

    target_mw: float = 0.0
    drawn_mw: float = 0.0
    speed: float = 0.0
    best: float = 0.0
    steps: int = 0


class Site(Struct, kw_only=True):
    """GPUs, the jobs on them, and the enforcer."""

    rng: Random
    curves: list[Curve]
    sizes: list[int]
    """Hosts of a job."""
    fleet: Fleet = field(default_factory=Fleet)
    pending: Pending = field(default_factory=lambda: Pending(at_once=True))
    runs: dict[str, Run] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    free: list[str] = field(default_factory=list)
    """Hosts without a job."""
    limits: dict[str, int] = field(default_factory=dict)
    drawn_mw: dict[str, float] = field(default_factory=dict)
    enforcer: Enforcer = field(default=None)  # type: ignore[assignment]  # it needs the others
    now: dict[str, int] = field(default_factory=dict)
    commands: int = 0
    started: int = 0

    def __post_init__(self) -> None:
        self.enforcer = Enforcer(self.fleet, self.pending, self.runs, {}, PLAN)

    def add_host(self, host: str) -> None:
        self.free.append(host)
        self.now[host] = 0
        for index in range(HOST_GPUS):
            gpu = f"{host}-{index}"
            found = replace(
                DEVICE_FOUND, gpu=gpu, index=index, name="A40", min_limit_mw=LEAST_MW, max_limit_mw=MOST_MW,
                default_limit_mw=MOST_MW, found_limit_mw=MOST_MW,
            )  # fmt: skip
            self.fleet.found(host, found)
            self.limits[gpu] = MOST_MW
            self.draw(gpu, IDLE_MW)

    def draw(self, gpu: str, power_mw: float) -> None:
        """Have a GPU draw so much from now on, and its collector read it."""
        power_mw *= 1 + NOISE * self.rng.gauss() if power_mw > IDLE_MW else 1
        self.drawn_mw[gpu] = power_mw
        known = self.fleet.gpus[gpu]
        now_ns = self.now[known.host]
        known.timeline.add(readings(row(Seen.POWER, now_ns, now_ns + 1, power_mw=round(power_mw))))

    # ---- jobs

    def begin_jobs(self, now_s: float) -> None:
        """Start jobs on free hosts, as far as the next one fits; about 4 % of hosts wait for one."""
        waiting = len(self.now) // 25
        while len(self.free) - (hosts := self.rng.choice(self.sizes)) >= waiting:
            self._begin(now_s, hosts)

    def _begin(self, now_s: float, hosts: int) -> None:
        self.started += 1
        name = f"run-{self.started}"
        job = f"{self.rng.choice(GROUPS)}-{self.rng.randrange(40)}"
        curve = self.rng.choice(self.curves)
        run = Run(name, self.fleet, self.pending, PLAN, KnownProfiles(Memory()), self.enforcer.allocations)
        gpus: list[str] = []
        for rank in range(hosts):
            host = self.free.pop(self.rng.randrange(len(self.free)))
            mine = tuple(f"{host}-{index}" for index in range(HOST_GPUS))
            about = replace(RUN_STARTED, run=name, job=job, rank=rank, world_size=hosts, gpus=mine)
            session = Session(f"{name}-{rank}", host, None, about, steps_kept=1)
            run.sessions[session.session] = session
            for gpu in mine:
                self.fleet.gpus[gpu].sessions[session.session] = session
            gpus += mine
        levels = limit_levels(limits_mw(MOST_MW, LEAST_MW, PLAN.stride_mw))
        selector = parse("time")
        assert selector is not None
        run.search.plan = make_plan(PLAN, selector, levels, len(gpus), self._profile(curve, len(gpus)))
        self.runs[name] = run
        ends_s = now_s + 3600 * self.rng.lognormvariate(1.0, 0.8)
        self.jobs[name] = Job(run=run, curve=curve, gpus=tuple(gpus), ends_s=ends_s)
        self.enforcer.handle(RunsChanged(), self.now)
        self._draw_job(self.jobs[name])

    def _profile(self, curve: Curve, gpus: int) -> tuple[Trial, ...]:
        return tuple(
            Trial(
                limit, round(40 * gpus * mj * self.rng.gauss(1, NOISE)),
                round(40 * ns * self.rng.gauss(1, NOISE)), 40,
            )
            for limit, mj, ns in zip(curve.limits_mw, curve.step_mj, curve.step_ns, strict=True)
        )  # fmt: skip

    def end_jobs(self, now_s: float) -> None:
        for name in [name for name, job in self.jobs.items() if job.ends_s <= now_s]:
            job = self.jobs.pop(name)
            del self.runs[name]
            for session in job.run.sessions.values():
                self.free.append(session.host)
                for gpu in session.started.gpus:
                    del self.fleet.gpus[gpu].sessions[session.session]
                    self.draw(gpu, IDLE_MW)
            self.enforcer.handle(RunsChanged(), self.now)

    def _draw_job(self, job: Job) -> None:
        """The slowest GPU sets the pace, so all draw what they draw at its limit."""
        power_mw, _ = job.at(min(self.limits[gpu] for gpu in job.gpus))
        for gpu in job.gpus:
            self.draw(gpu, power_mw)

    # ---- limits

    def step(self, budget: Budget, now_s: int) -> float:
        """Let the site have one step under a budget. Return the target, mW."""
        holding = in_force([budget], now_s * S)
        for host in self.now:
            self.now[host] = now_s * S
        any_host = next(iter(self.now))
        self._obey(self.enforcer.handle(BudgetsSet(0, holding), self.now))
        for _ in range(6):
            if not self._obey(self.enforcer.handle(FrameHandled(any_host), self.now)):
                break
        return float(holding[0].limit_mw)

    def _obey(self, result: Result) -> int:
        """Carry out commands, and say so. Return how many there were."""
        changed: dict[str, None] = {}
        for command in result.instructions:
            assert isinstance(command, ApplyControl | RestoreControl)
            self.limits[command.gpu] = command.value if isinstance(command, ApplyControl) else MOST_MW
            host = self.fleet.gpus[command.gpu].host
            note = ControlApplied(
                self.now[host], command.command, command.gpu, "power_limit", self.limits[command.gpu]
            )
            settled = CommandSettled(self.pending.settle(host, note), note)
            self.enforcer.handle(settled, self.now)
            for session in self.fleet.gpus[command.gpu].sessions.values():
                changed[session.started.run] = None
        for name in changed:
            self._draw_job(self.jobs[name])
        self.commands += len(result.instructions)
        return len(result.instructions)

    # ---- what came of it

    def speed(self) -> float:
        """Return the sum over GPUs with a job of their speed, as a share of that without a limit."""
        return sum(
            len(job.gpus) * job.at(min(self.limits[gpu] for gpu in job.gpus))[1] for job in self.jobs.values()
        )

    def best(self, drawn_mw: float) -> float:
        """Return the largest such sum for the power drawn: the steepest parts of hulls first."""
        parts: list[tuple[float, float]] = []
        left_mw, speed = drawn_mw - IDLE_MW * HOST_GPUS * len(self.free), 0.0
        for job in self.jobs.values():
            count = len(job.gpus)
            points = sorted(job.at(limit) for limit in job.curve.limits_mw)
            left_mw -= count * points[0][0]
            speed += count * points[0][1]
            hull: list[tuple[float, float]] = []
            for point in points:
                while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
                    hull.pop()
                if not hull or point[1] > hull[-1][1]:
                    hull.append(point)
            parts += [(-_slope(low, high), count * (high[0] - low[0])) for low, high in pairwise(hull)]
        for slope, power_mw in sorted(parts):
            within = max(0.0, min(power_mw, left_mw))
            speed -= slope * within
            left_mw -= within
        return speed


def _slope(low: tuple[float, float], high: tuple[float, float]) -> float:
    return (high[1] - low[1]) / max(high[0] - low[0], 1e-9)


def signal(rng: Random, free_mw: float, hours: int) -> Iterator[tuple[int, int]]:
    """Yield since when (ns) each value of the day's signal is in force, mW."""
    low, high = FEASIBLE
    regulation = 0.0
    for minute in range(0, hours * 60, 5):
        hour = minute // 60
        peaks = np.exp(-(((hour % 24 - 8.5) / 2.5) ** 2)) + np.exp(-(((hour % 24 - 19) / 3) ** 2))
        share = low + (high - low) * (1 - min(float(peaks), 1.0))
        regulation = 0.9 * regulation + 0.01 * rng.gauss()
        called = sum(by for at, lasts, by in EVENTS if at * 60 <= minute < at * 60 + lasts)
        yield minute * 60 * S, round(free_mw * max(share * (1 + called) + regulation, LEAST_SHARE))


def play(site: Site, budget: Budget, hours: int) -> list[Minute]:
    minutes = [Minute() for _ in range(hours * 60)]
    for now_s in range(0, hours * 3600, STEP_S):
        site.end_jobs(now_s)
        site.begin_jobs(now_s)
        minute = minutes[now_s // 60]
        minute.target_mw += site.step(budget, now_s)
        minute.drawn_mw += sum(site.drawn_mw.values())
        minute.steps += 1
        if minute.steps * STEP_S == 60:
            minute.speed, minute.best = site.speed(), site.best(sum(site.drawn_mw.values()))
    return minutes


def main() -> int:
    args = options(__doc__, gpus=10_000, hours=24, seed=1)
    rng = Random(args.seed)
    known = [curve for curve in curves() if curve.name.startswith("a40")]
    site = Site(rng=rng, curves=known, sizes=[max(round(size * args.gpus / OF_GPUS), 1) for size in SIZES])
    for index in range(args.gpus // HOST_GPUS):
        site.add_host(f"h{index}")
    site.begin_jobs(0)
    free_mw = sum(site.drawn_mw.values())
    ramp_mw_s = round(RAMP * free_mw / 60)
    budget = Budget(
        group="site", limit_mw=1, gpus=(), set_ns=0, begin_ns=0, end_ns=10**18, ramp_ns=0,
        targets=tuple(signal(rng, free_mw, args.hours)), follows="load.csv", ramp_mw_s=ramp_mw_s,
    )  # fmt: skip
    began_s = time.process_time()
    minutes = play(site, budget, args.hours)[2:]  # the first two: from no limit to the target
    step_ms = 1000 * (time.process_time() - began_s) / (args.hours * 360)
    target = np.array([minute.target_mw / minute.steps for minute in minutes])
    drawn = np.array([minute.drawn_mw / minute.steps for minute in minutes])
    errors = np.abs(drawn / target - 1)
    within = float((errors <= GOAL_SHARE).mean())
    ramps, largest = (np.abs(np.diff(power_mw)) / (60 * ramp_mw_s) for power_mw in (drawn, target))
    lost = 1 - sum(m.speed for m in minutes) / sum(m.best for m in minutes)
    spread = errors.mean(), np.quantile(errors, 0.95), errors.max()
    rows = [
        ("GPUs, jobs, hours, seed", f"{args.gpus}, {site.started}, {args.hours}, {args.seed}"),
        ("drawn without a limit", f"{free_mw / 1e9:.3f} MW"),
        ("target", f"{target.min() / 1e9:.3f} to {target.max() / 1e9:.3f} MW"),
        ("minutes within 2 % of the target (goal: 95 %)", f"{100 * within:.2f} %"),
        ("error: mean, p95, largest", " ".join(f"{100 * error:.2f} %" for error in spread)),
        ("ramp allowed", f"{60 * ramp_mw_s / 1e6:.1f} kW a minute"),
        ("largest ramp of the target, of it", f"{100 * largest.max():.1f} %"),
        ("drawn: minutes above the ramp, largest, of it", f"{(ramps > 1).sum()}, {100 * ramps.max():.0f} %"),
        ("throughput lost against the best possible", f"{100 * lost:.2f} %"),
        ("commands an hour", f"{site.commands / args.hours:.0f}"),
        ("processor time a step of 10 s", f"{step_ms:.0f} ms"),
    ]
    wrong = [] if within >= GOAL_MINUTES else [f"only {100 * within:.1f} % of minutes are within 2 %"]
    return judged("A site that follows a load signal", "quantity | figure", rows, wrong)


if __name__ == "__main__":
    sys.exit(main())
