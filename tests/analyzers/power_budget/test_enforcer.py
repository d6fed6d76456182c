"""Budgets over runs and idle GPUs, through the interpreter: what is in force never adds up to too much."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TypeVar

import pytest
from msgspec.structs import replace

from analyzers.interpreter.interpreter import Interpreter, LinkSeen
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.result import OWN, ApplyControl, RestoreControl
from analyzers.results.rows import BudgetRow, BudgetShareRow, BudgetTargetRow, CommandRow, DecisionRow
from tests.analyzers.readings import readings, row
from tests.messages import COLLECTOR_STARTED, DEVICE_FOUND, LEASE_ENDED, RUN_ADMITTED, RUN_STARTED
from tests.simulation.simulated_site import Training
from tests.simulation.world import Output, World, outputs_of, replayed
from zeus_stream.protocol.events import RunEnded, StepBoundary
from zeus_stream.protocol.fields import BUDGET
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import (
    Budget,
    BudgetsSet,
    ControlApplied,
    ControlLeaseEnded,
    ControlRefused,
    LeaseCause,
    Note,
    Notes,
)
from zeus_stream.protocol.readings import Readings, Seen

S = 1_000_000_000
W = 1000
LEAST, FOUND = 100 * W, 300 * W
PLAN = RunSettings(selector=selectors.parse("energy"), stride_mw=50 * W, refreshes=1, timeout_ns=2 * S)

R = TypeVar("R")


def budget(limit_w: int, group: str = "rack1", gpus: tuple[str, ...] = (), way: float = 1.0) -> Budget:
    return Budget(
        group=group,
        limit_mw=limit_w * W,
        gpus=gpus,
        set_ns=0,
        begin_ns=0,
        end_ns=10**15,
        ramp_ns=0,
        before_mw=None,
        way=way,
    )


@dataclass(slots=True)
class Site:
    """Collectors that obey after a while, each with one GPU; and who hears them."""

    gpus: int
    rng: Random = field(default_factory=lambda: Random(0))
    interpreter: Interpreter = field(default_factory=lambda: Interpreter(PLAN))
    now_ns: int = 1000 * S
    limits: dict[str, int] = field(default_factory=dict)
    """In force, by GPU."""
    holders: dict[str, str] = field(default_factory=dict)
    """In whose name limits are held."""
    frames: list[tuple[Frame, Body]] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    under_way: dict[str, list[tuple[int, ApplyControl | RestoreControl]]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    """By session, the next."""
    hosts: dict[str, str] = field(default_factory=dict)
    """By session."""
    refusing: dict[str, str] = field(default_factory=dict)
    """Why, by GPU."""
    _offsets: "count[int]" = field(default_factory=count)

    def __post_init__(self) -> None:
        for index in range(self.gpus):
            gpu, host = f"g{index}", f"h{index}"
            self.limits[gpu] = FOUND
            self.under_way[gpu] = []
            self.note(
                host,
                replace(COLLECTOR_STARTED, t_ns=self.now_ns, incarnation="i", wall_ns=self.now_ns),
            )
            found = replace(
                DEVICE_FOUND,
                t_ns=self.now_ns,
                gpu=gpu,
                name="A40",
                driver="0",
                min_limit_mw=LEAST,
                max_limit_mw=FOUND,
                default_limit_mw=FOUND,
                found_limit_mw=FOUND,
            )
            self.note(host, found)

    def note(self, host: str, note: Note) -> None:
        self.log(host, Notes((note,)))

    def log(self, host: str, body: Body) -> None:
        frame = Frame(
            log_id=f"log-{host}",
            offset=next(self._offsets),
            host=host,
            t_ns=self.now_ns,
            topic="topic",
            body=b"",
        )
        self.frames.append((frame, body))
        outputs = outputs_of(self.interpreter, frame, body)
        self.outputs += outputs
        for output in outputs:
            if isinstance(output, ApplyControl | RestoreControl):
                waiting = self.under_way[output.gpu]
                due_ns = max([self.now_ns, *(at for at, _ in waiting)]) + self.rng.randrange(3 * S // 10)
                waiting.append((due_ns, output))

    def set(self, *budgets: Budget) -> None:
        self.note(OWN, BudgetsSet(self.now_ns, budgets))

    def begin(self, run: str, gpus: Iterable[str]) -> None:
        """Start a rank on each GPU's host."""
        gpus = tuple(gpus)
        for rank, gpu in enumerate(gpus):
            session, host = f"{run}-{rank}", gpu.replace("g", "h")
            started = replace(
                RUN_STARTED,
                t_ns=self.now_ns,
                job=run,
                run=run,
                rank=rank,
                world_size=len(gpus),
                gpus=(gpu,),
                wall_ns=self.now_ns,
            )
            self.steps[session] = 0
            self.hosts[session] = host
            self.log(host, Events(session, 0, 0, 1, (started,)))
            self.note(
                host,
                replace(RUN_ADMITTED, t_ns=self.now_ns, session=session, run=run, gpus=(gpu,)),
            )

    def step(self, run: str) -> None:
        for session in [session for session in self.steps if session.rsplit("-", 1)[0] == run]:
            index = self.steps[session]
            self.steps[session] += 1
            ended = self.now_ns if index else None
            self.log(
                self.hosts[session], Events(session, 1, 0, 1, (StepBoundary(index, ended, self.now_ns),))
            )

    def train(self, run: str, steps: int) -> None:
        """Begin so many steps, each of 0.1 s."""
        for _ in range(steps):
            self.step(run)
            self.go_on(S // 10)

    def end(self, run: str) -> None:
        for session in [session for session in self.steps if session.rsplit("-", 1)[0] == run]:
            del self.steps[session]
            host = self.hosts[session]
            self.log(host, Events(session, 1, 0, 1, (RunEnded(self.now_ns),)))
            if self.holders.get(gpu := host.replace("h", "g")) == run:
                self.lose(gpu, "run")

    def lose(self, gpu: str, cause: LeaseCause, limit: int = FOUND) -> None:
        """A lease ends, as its collector has it."""
        self.limits[gpu] = limit
        self.holders.pop(gpu, None)
        ended = ControlLeaseEnded(
            t_ns=self.now_ns,
            gpu=gpu,
            control="power_limit",
            owner="owner",
            cause=cause,
            reason=f"it is over: {cause}",
            value=limit,
        )
        self.note(gpu.replace("g", "h"), ended)

    def go_on(self, ns: int) -> None:
        """Let time pass: what is due is obeyed."""
        self.now_ns += ns
        for gpu, waiting in self.under_way.items():
            while waiting and waiting[0][0] <= self.now_ns:
                _, command = waiting.pop(0)
                self._obey(gpu, command)
        for index in range(self.gpus):
            self.log(f"h{index}", Notes(()))

    def _obey(self, gpu: str, command: ApplyControl | RestoreControl) -> None:
        host = gpu.replace("g", "h")
        if gpu in self.refusing:
            refused = ControlRefused(self.now_ns, command.command, gpu, "observe", self.refusing[gpu])
            self.note(host, refused)
            return
        match command:
            case ApplyControl(run=holder, value=limit_mw):
                self.limits[gpu], self.holders[gpu] = limit_mw, holder
            case RestoreControl():
                self.limits[gpu] = FOUND
                self.holders.pop(gpu, None)
        self.note(host, ControlApplied(self.now_ns, command.command, gpu, "power_limit", self.limits[gpu]))

    def settle(self) -> None:
        for _ in range(60):
            self.go_on(S // 10)

    def rows(self, kind: type[R]) -> list[R]:
        return [output for output in self.outputs if isinstance(output, kind)]


# ---- idle GPUs -------------------------------------------------------------------------------------------


def test_gpus_without_a_run_are_lowered_held_and_given_back() -> None:
    site = Site(4)
    site.set(budget(800))
    site.settle()
    assert list(site.limits.values()) == [200 * W] * 4
    assert set(site.holders.values()) == {f"{BUDGET}rack1"}
    assert {row.outcome for row in site.rows(CommandRow)} == {"applied"}
    site.set()
    site.settle()
    assert list(site.limits.values()) == [FOUND] * 4
    assert not site.holders
    (*_, last) = site.rows(BudgetRow)
    assert (last.budget, last.binding, len(last.gpus)) == ("rack1", False, 4)


def test_a_budget_is_about_the_gpus_that_it_names() -> None:
    site = Site(4)
    site.set(budget(200, gpus=("g0", "h1:0")), budget(150, "other", ("h3:all",)))
    site.settle()
    assert list(site.limits.values()) == [LEAST, LEAST, FOUND, 150 * W]
    assert [site.holders.get(f"g{i}", "")[len(BUDGET) :] for i in range(4)] == ["rack1", "rack1", "", "other"]


def test_the_row_of_a_shards_grant_has_the_limit_of_the_whole_budget() -> None:
    """Its rows are beside those of the other shards in the lake: each had another limit."""
    site = Site(1)
    site.set(replace(budget(200), site_mw=800 * W))
    site.settle()
    assert site.limits["g0"] == 200 * W
    assert {row.limit_w for row in site.rows(BudgetRow)} == {800}


def test_a_budget_about_nothing_comes_and_goes() -> None:
    site = Site(1)
    site.set(budget(500, gpus=("nowhere:all",)))
    site.set()
    assert [(row.gpus, row.binding) for row in site.rows(BudgetRow)] == [((), True), ((), False)]
    assert not site.rows(ApplyControl)


def test_a_gpu_that_was_given_back_stays_so_when_a_run_of_another_shard_sets_its_limit() -> None:
    site = Site(1)
    site.interpreter.handle(LinkSeen("h0", connected=True, behind=0), site.now_ns)
    site.set(budget(200))
    site.settle()
    enforcer = site.interpreter.site.enforcer

    def returned() -> bool:
        gpus, _ = enforcer.shard_use()
        return gpus["g0"].returned

    assert not returned()
    site.set()
    site.settle()
    assert returned()
    site.note("h0", ControlApplied(site.now_ns, "of another analyzer", "g0", "power_limit", 250 * W))
    assert returned()


def test_of_two_budgets_both_hold() -> None:
    site = Site(3)
    site.set(budget(600), budget(250, "small", ("g0", "g1")))
    site.settle()
    assert site.limits["g0"] + site.limits["g1"] <= 250 * W
    assert site.limits["g2"] == FOUND


def test_a_budget_under_the_least_limits_says_so_and_does_what_it_can() -> None:
    site = Site(3)
    site.set(budget(250))
    site.settle()
    assert list(site.limits.values()) == [LEAST] * 3
    (*_, last) = site.rows(BudgetRow)
    assert "the least limits of 3 GPUs are 300 W, over 250 W. Raise it" in last.reason
    site.refusing |= {"g0": "no permission"}
    site.lose("g0", "lapsed")
    site.settle()
    (*_, last) = site.rows(BudgetRow)
    assert "2 GPUs are 200 W, 1 GPUs that cannot be commanded keep 300 W, over 250 W" in last.reason


def test_a_budget_that_allows_everything_touches_nothing() -> None:
    site = Site(2)
    site.set(budget(600))
    site.settle()
    assert not site.rows(ApplyControl)


def test_a_gpu_that_is_not_to_be_commanded_counts_and_the_others_make_room() -> None:
    site = Site(3, refusing={"g0": "this collector only observes"})
    site.set(budget(600))
    site.settle()
    assert list(site.limits.values()) == [FOUND, 150 * W, 150 * W]
    told = {row.gpu: row for row in site.rows(BudgetShareRow)}
    assert (told["g0"].limit_w, told["g0"].reason) == (300, "this collector only observes")
    assert told["g0"].most_w == 200, "what it would have"
    assert len([row for row in site.rows(ApplyControl) if row.gpu == "g0"]) == 1, "it is asked once"


def test_the_limit_of_a_stranger_stays_and_counts() -> None:
    site = Site(2)
    site.set(budget(400))
    site.settle()
    site.lose("g0", "other_program", 220 * W)
    site.settle()
    assert site.limits == {"g0": 220 * W, "g1": 150 * W}


@pytest.mark.parametrize("cause", ["lapsed", "restart", "shutdown", "run"])
def test_a_lease_that_ended_is_taken_again(cause: LeaseCause) -> None:
    site = Site(2)
    site.set(budget(400))
    site.settle()
    site.lose("g0", cause)
    site.settle()
    assert list(site.limits.values()) == [200 * W] * 2


def test_a_gpu_that_works_for_nobody_known_has_its_share_until_it_is_idle_again() -> None:
    site = Site(3)
    site.set(budget(500))
    site.settle()
    assert sorted(site.limits.values()) == [150 * W, 150 * W, 200 * W]

    def draw(power_w: int, seconds: int) -> None:
        for _ in range(seconds):
            seen = row(Seen.POWER, site.now_ns - 1, site.now_ns, power_mw=power_w * W)
            site.log("h1", Readings(("g1",), readings(seen).tobytes()))
            site.go_on(S)

    draw(140, 10)
    assert site.limits == {"g0": LEAST, "g1": FOUND, "g2": LEAST}
    draw(30, 70)
    assert sorted(site.limits.values()) == [150 * W, 150 * W, 200 * W]


@pytest.mark.parametrize("gpu", ["g0", "nobody's"])
def test_what_a_collector_says_of_the_gpus_of_another_is_not_believed(gpu: str) -> None:
    site = Site(2)
    site.set(budget(400))
    site.settle()
    asked = len(site.rows(ApplyControl))
    site.note("h1", ControlApplied(site.now_ns, "c", gpu, "power_limit", LEAST))
    site.note(
        "h1",
        replace(LEASE_ENDED, t_ns=site.now_ns, gpu=gpu, owner="o", reason="it is said", value=LEAST),
    )
    site.note(
        "h1",
        replace(COLLECTOR_STARTED, t_ns=site.now_ns, incarnation="i2", wall_ns=site.now_ns),
    )
    site.settle()
    assert site.limits == {"g0": 200 * W, "g1": 200 * W}
    assert {each.gpu for each in site.rows(ApplyControl)[asked:]} == {"g1"}


def test_what_others_say_of_budgets_is_not_believed() -> None:
    site = Site(1)
    site.note("h0", BudgetsSet(site.now_ns, (budget(100),)))
    site.settle()
    assert not site.rows(ApplyControl)


# ---- runs ------------------------------------------------------------------------------------------------


def test_a_run_under_a_budget_leaves_the_limit_to_the_budget_when_it_ends() -> None:
    site = Site(2)
    site.set(budget(400))
    site.begin("r", ["g0"])
    site.train("r", 40)
    assert site.limits["g0"] == FOUND, "who works has what it can use"
    assert site.limits["g1"] == LEAST
    site.end("r")
    site.settle()
    assert list(site.limits.values()) == [200 * W] * 2
    site.set()
    site.settle()
    assert list(site.limits.values()) == [FOUND] * 2


def test_a_run_that_is_there_before_the_budget_has_its_own_limit_after_it() -> None:
    site = Site(1)
    site.begin("r", ["g0"])
    site.train("r", 30)
    assert site.holders["g0"] == "r"
    site.set(budget(150))
    site.train("r", 30)
    assert site.limits["g0"] <= 150 * W
    assert site.holders["g0"] == f"{BUDGET}rack1"
    before = len(site.outputs)
    site.set()
    (command,) = [each for each in site.outputs[before:] if isinstance(each, ApplyControl | RestoreControl)]
    assert isinstance(command, ApplyControl)
    assert (command.run, command.value) == ("r", site.limits["g0"]), "as it is, in the run's name"
    site.settle()
    assert site.holders["g0"] == "r"
    site.end("r")
    site.settle()
    assert site.limits["g0"] == FOUND


def test_a_limit_that_a_run_set_before_the_budget_is_held_for_the_budget() -> None:
    site = Site(1)
    site.begin("r", ["g0"])
    site.train("r", 5)
    assert site.holders["g0"] == "r"
    site.set(budget(300))
    for _ in range(5):
        site.go_on(S // 10)
    assert site.holders["g0"] == f"{BUDGET}rack1"


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(3))
def test_whatever_runs_come_and_go_the_sum_of_limits_is_kept(seed: int) -> None:
    rng = Random(seed)
    site = Site(5, rng)
    most_w = rng.randrange(500, 1600)
    for tenth in range(1, 11):
        site.set(budget(most_w, way=tenth / 10))
        site.go_on(S)
    site.settle()
    free, names = {f"g{i}" for i in range(5)}, count()
    running: dict[str, list[str]] = {}
    for _ in range(250):
        if free and rng.random() < 0.05:
            run, gpus = f"r{next(names)}", rng.sample(sorted(free), rng.randint(1, len(free)))
            free -= set(gpus)
            running[run] = gpus
            site.begin(run, gpus)
        if running and rng.random() < 0.03:
            run = rng.choice(sorted(running))
            free |= set(running.pop(run))
            site.end(run)
        for run in running:
            site.step(run)
        site.go_on(rng.randrange(S // 2))
        assert sum(site.limits.values()) <= most_w * W, site.limits
    assert {row.budget for row in site.rows(BudgetShareRow)} == {"rack1"}
    for run in running:
        site.end(run)
    site.set()
    site.settle()
    assert list(site.limits.values()) == [FOUND] * 5
    again = Interpreter(PLAN)
    assert replayed(again, site.frames) == site.outputs


@pytest.mark.sweep
def test_the_watts_go_to_the_run_that_is_the_faster_for_them() -> None:
    plan = replace(PLAN, selector=selectors.parse("time"), exhaustive=True, warmup_steps=2, profile_steps=5)
    site = Site(2, interpreter=Interpreter(plan))
    site.set(budget(400))
    site.settle()
    site.begin("hungry", ["g0"])
    site.begin("modest", ["g1"])
    due_ns = {"hungry": site.now_ns, "modest": site.now_ns}
    tick_ns, ticks = S // 20, 0
    while len({row.run for row in site.rows(DecisionRow)}) < 2 or site.limits["g0"] < FOUND:
        limit_mw, ticks = site.limits["g0"], ticks + 1
        step_ns = {"hungry": S // 5 * FOUND // limit_mw, "modest": S // 5}
        for run, at_ns in due_ns.items():
            if site.now_ns >= at_ns:
                due_ns[run] = at_ns + step_ns[run]
                site.step(run)
        for host, gpu, power_mw in (("h0", "g0", limit_mw), ("h1", "g1", 80 * W)):
            seen = row(Seen.POWER, site.now_ns - 1, site.now_ns, power_mw=power_mw)
            site.log(host, Readings((gpu,), readings(seen).tobytes()))
        site.go_on(tick_ns)
        assert sum(site.limits.values()) <= 400 * W
        assert ticks < 3000, site.rows(BudgetShareRow)
    assert site.limits == {"g0": FOUND, "g1": LEAST}


# ---- a load signal ---------------------------------------------------------------------------------------


def test_gpus_draw_what_a_signal_says_though_they_draw_less_than_their_limits() -> None:
    """Ten GPUs draw 92 % of their limit, six are idle at 40 W."""
    site = Site(16)
    signal = [2500] * 12 + [1700] * 8
    drawn_w = []
    for step, target_w in enumerate(signal):
        site.set(replace(budget(target_w, gpus=()), target_ns=step * 10 * S))
        for _ in range(10):
            for index, limit_mw in enumerate(site.limits.values()):
                power_mw = limit_mw * 92 // 100 if index < 10 else 40 * W
                seen = row(Seen.POWER, site.now_ns - 1, site.now_ns, power_mw=power_mw)
                site.log(f"h{index}", Readings((f"g{index}",), readings(seen).tobytes()))
            site.go_on(S)
        site.interpreter.validate()
        drawn_w.append(sum(list(site.limits.values())[:10]) * 0.92 / W + 6 * 40)
    assert drawn_w[11] == pytest.approx(2500, abs=50), "to within one stride"
    assert drawn_w[19] == pytest.approx(1700, abs=50)
    assert list(site.limits.values())[10:] == [LEAST] * 6, "an idle GPU gets no watts that it would not draw"
    targets = site.rows(BudgetTargetRow)
    assert [each.target_w for each in targets] == signal
    assert targets[11].most_w > 2500
    assert replayed(Interpreter(PLAN), site.frames) == site.outputs


def test_jobs_named_first_get_their_watts_before_others() -> None:
    site = Site(4)
    site.begin("dev", ["g0", "g1"])
    site.begin("prod-1", ["g2", "g3"])
    site.set(replace(budget(900), first=("prod-*",)))
    site.settle()
    assert list(site.limits.values()) == [150 * W, 150 * W, FOUND, FOUND]


# ---- a real search under a budget ------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("exhaustive", [True, False])
def test_a_run_decides_within_its_share_and_again_when_the_budget_is_over(
    exhaustive: bool,  # noqa: FBT001 - parametrized
) -> None:
    plan = RunSettings(
        selector=selectors.parse("time"),
        stride_mw=50 * W,
        warmup_steps=2,
        profile_steps=5,
        settle_ns=0,
        refreshes=2,
        exhaustive=exhaustive,
    )
    world = World("simulated:v100x1", Training("imagenet", 0.1, 1000), plan)

    def say(*budgets: Budget) -> None:
        world.hear(
            Frame(log_id="own", offset=0, host=OWN, t_ns=world.now_ns, topic="budgets", body=b""),
            Notes((BudgetsSet(0, budgets),)),
        )

    def decided(limit_w: int) -> DecisionRow:
        """Return the next decision for a limit."""
        before = len(world.rows(DecisionRow))
        for _ in range(100):
            world.run(0.2)
            if found := [row for row in world.rows(DecisionRow)[before:] if row.power_limit_w == limit_w]:
                return found[-1]
        raise AssertionError(world.rows(DecisionRow))

    world.run(2)
    say(budget(150))
    assert decided(150).reason.endswith("budget rack1 allows no more than 150 W")
    asked = [row.value for row in world.rows(ApplyControl) if row.run == f"{BUDGET}rack1"]
    assert asked
    assert max(asked) <= 150 * W
    say()
    assert "budget" not in decided(250).reason
    assert world.rows(ApplyControl)[-1].run == "run"
