"""One session of a benchmark: cool down, warm up, and measure functions in turns.

Each repeat is a window of the publisher, so the archive has all of them. The number of calls is a metric.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from statistics import fmean

from msgspec import Struct

from zeus_stream.bench.energy_difference import order_of_round
from zeus_stream.errors import RefusedError, UnreachableError
from zeus_stream.training.identity import MAX_NAME
from zeus_stream.training.publisher import Publisher
from zeus_stream.training.windows import Later
from zeus_stream.transport.client import Connection
from zeus_stream.zeus.monitor.energy import synchronize

SPAN_S = 10.0
"""The temperature is stable if it has changed by at most `CHANGE_C` for so long."""
CHANGE_C = 1


class SettledTemperature:
    """The latest temperatures of all GPUs of a benchmark."""

    def __init__(self, span_s: float = SPAN_S) -> None:
        self._span_s = span_s
        self._seen: deque[tuple[float, tuple[int, ...]]] = deque()

    def look(self, now_s: float, temperatures_c: tuple[int, ...]) -> bool:
        """Add the temperatures, C, of the GPUs in order, and tell whether they are stable. Empty: no."""
        if not temperatures_c or (self._seen and len(self._seen[-1][1]) != len(temperatures_c)):
            self._seen.clear()
            return False
        self._seen.append((now_s, temperatures_c))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - self._span_s:
            self._seen.popleft()
        if self._seen[0][0] > now_s - self._span_s:
            return False
        columns = zip(*(row for _, row in self._seen), strict=True)
        return all(max(column) - min(column) <= CHANGE_C for column in columns)


ANSWER_S = 60.0
LOOK_S = 0.5


class BenchPlan(Struct, frozen=True, kw_only=True):
    """Lengths and the number of measurements of a session."""

    rounds: int = 20
    """In each, every function is measured once."""
    seconds: float = 1.0
    """Of a repeat, at least: a function is called as often as it takes."""
    warmup_s: float = 60.0
    """At most; it ends once the temperature is stable."""
    cool_down_s: float = 120.0
    """At most, as well. 0: none."""


class BenchVariant(Struct, frozen=True, kw_only=True):
    """A function and its repeats: one entry for each round."""

    name: str
    calls: int
    """In each repeat."""
    energies_j: tuple[float | None, ...]
    """Of one call. None: it is not known."""
    durations_s: tuple[float | None, ...]

    @property
    def duration_s(self) -> float | None:
        """The mean time of one call."""
        known = [duration for duration in self.durations_s if duration is not None]
        return fmean(known) if known else None


class EnergyBench:
    """Runs functions in turns, in this process, and measures the GPUs of its publisher."""

    def __init__(
        self,
        publisher: Publisher,
        plan: BenchPlan,
        temperatures: Callable[[], tuple[int, ...]],
        stopped: Callable[[], bool] = lambda: False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``temperatures``: of all GPUs, degrees C; empty: unknown. ``tell`` is given each new phase."""
        self._publisher, self._plan = publisher, plan
        self._temperatures, self._stopped, self._tell = temperatures, stopped, tell

    def run(self, functions: Mapping[str, Callable[[], object]]) -> tuple[BenchVariant, ...]:
        """Measure functions, the baseline first. Their errors pass through. RefusedError: it was stopped.

        Raises UnreachableError: no repeat has an energy; the sentence holds the reason.
        """
        self._cool_down()
        calls = self._warm_up(functions)
        for name, count in calls.items():
            self._publisher.metric(calls_metric(name), count)
        answers: dict[str, list[Later]] = {name: [] for name in functions}
        names = list(functions)
        self._tell(f"measuring {self._plan.rounds} rounds of {len(names)} x {self._plan.seconds:g} s")
        for number in range(self._plan.rounds):
            for index in order_of_round(number, len(names)):
                name = names[index]
                self._check()
                with self._publisher.window(window_name(name)) as window:
                    self._call(functions[name], calls[name])
                answers[name].append(window.energy_later(ANSWER_S))
        return tuple(self._variant(name, calls[name], asked) for name, asked in answers.items())

    def _variant(self, name: str, calls: int, asked: Sequence[Later]) -> BenchVariant:
        known = [each.wait() for each in asked]
        if all(each.energy_j is None for each in known):
            raise UnreachableError(f"bench: could not measure {name}: {known[-1]}")
        return BenchVariant(
            name=name,
            calls=calls,
            energies_j=tuple(each.energy_j / calls if each.energy_j is not None else None for each in known),
            durations_s=tuple(
                each.duration_s / calls if each.duration_s is not None else None for each in known
            ),
        )

    def _call(self, function: Callable[[], object], calls: int) -> None:
        for _ in range(calls):
            function()
        wait_for_gpus()

    def _cool_down(self) -> None:
        if self._plan.cool_down_s <= 0:
            return
        settled = SettledTemperature()
        end_s = time.monotonic() + self._plan.cool_down_s
        self._tell(f"waiting for a stable temperature: {self._plan.cool_down_s:g} s at most")
        while (now_s := time.monotonic()) < end_s:
            self._check()
            now_c = self._temperatures()
            if settled.look(now_s, now_c):
                return
            if not now_c and now_s > end_s - self._plan.cool_down_s + SPAN_S:
                self._tell("no temperature is known")
                return
            time.sleep(LOOK_S)
        self._tell("the temperature is not stable")

    def _warm_up(self, functions: Mapping[str, Callable[[], object]]) -> dict[str, int]:
        """Run all functions until the temperature is stable under load. Return the calls of a repeat."""
        settled = SettledTemperature()
        self._tell(f"warming up: {self._plan.warmup_s:g} s at most")
        began_s = time.monotonic()
        calls = dict.fromkeys(functions, 1)
        for _ in range(2):  # a first call compiles
            for name, function in functions.items():
                self._check()
                before_s = time.monotonic()
                self._call(function, 1)
                took_s = time.monotonic() - before_s
                calls[name] = max(1, ceil(self._plan.seconds / max(took_s, 1e-6)))
        while (now_s := time.monotonic()) < began_s + self._plan.warmup_s:
            if settled.look(now_s, self._temperatures()):
                break
            for name, function in functions.items():
                self._check()
                self._call(function, calls[name])
        return calls

    def _check(self) -> None:
        if self._stopped():
            raise RefusedError("bench: could not finish: it was stopped. Run it again to measure.")


def gpu_temperatures(connection: Connection) -> Callable[[], tuple[int, ...]]:
    """Return a function that returns the temperatures of all GPUs, as the analyzer has them now."""

    def look() -> tuple[int, ...]:
        gpus = sorted(connection.now().gpus, key=lambda each: each.gpu)
        return tuple(each.temperature_c for each in gpus if each.temperature_c is not None)

    return look


def window_name(name: str) -> str:
    """Return the name of the windows of a function."""
    return f"bench {name}"[:MAX_NAME]


def calls_metric(name: str) -> str:
    """Return the name of the metric that has the calls in each window of a function."""
    return f"calls of {name}"[:MAX_NAME]


def wait_for_gpus() -> None:
    """Wait until the GPUs have done what torch or JAX gave them."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        synchronize(list(range(torch.cuda.device_count())), "torch")
    synchronize([0], "jax")
