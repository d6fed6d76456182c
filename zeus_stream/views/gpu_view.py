"""One GPU for people. Pure."""

from collections.abc import Iterable, Mapping
from statistics import median

from msgspec import Struct

from zeus_stream.protocol.snapshots import GpuNow
from zeus_stream.views.quantity import ABSENT, Quantity, counted, seconds, thousandth

ODD = 0.15
"""A GPU whose share of its limit is so far from that of the others is odd."""
MOST_ODD = 4
"""Odd GPUs that are named."""
GIB = 1 << 30
LOWER_MW = 500
"""A limit that is so much below the one found is a lower one."""


class GpuView(Struct, frozen=True, kw_only=True):
    """A GPU. A figure that is old or unknown has no value; `trouble` says why."""

    gpu: str
    host: str
    index: str
    model: str
    power: Quantity
    limit: Quantity
    found: Quantity
    most: Quantity
    """The limit that a bar of its power is drawn against."""
    energy: Quantity
    temperature: Quantity
    utilization: Quantity
    clock: Quantity
    memory: Quantity
    memory_total: Quantity
    step_energy: Quantity
    run: str
    trouble: str
    """Why there is no new reading. Empty: there is one."""
    gone: bool

    @property
    def place(self) -> str:
        """Return where it is."""
        return f"{self.host}:{self.index}"

    @property
    def lowered(self) -> bool:
        """Tell whether its limit is below the one that was found."""
        limit, found = self.limit.known, self.found.known
        return limit is not None and found is not None and limit < found - LOWER_MW / 1000

    @property
    def memory_words(self) -> str:
        """Return its memory in use and all of it, GiB. Empty: it is not known."""
        used, total = self.memory.known, self.memory_total.known
        return "" if used is None or total is None else f"{used:.1f}/{total:.0f}"

    @property
    def share(self) -> float | None:
        """Return its power over its limit."""
        power, limit = self.power.known, self.limit.known
        return power / limit if power is not None and limit else None


def with_places(text: str, places: Mapping[str, str]) -> str:
    """Return a reason with the place of each GPU, such as ``node1:0``, instead of its UUID."""
    for gpu, place in places.items():
        text = text.replace(gpu, place)
    return text


class GpuStrip(Struct, frozen=True, kw_only=True):
    """The GPUs of one run, or those that no run has."""

    run: str
    gpus: tuple[GpuView, ...]

    @property
    def odd(self) -> tuple[GpuView, ...]:
        """Return those without a reading, and those far from the others in their share of the limit."""
        shares = [gpu.share for gpu in self.gpus if gpu.share is not None]
        usual = median(shares) if shares else 0.0
        return tuple(gpu for gpu in self.gpus if gpu.share is None or abs(gpu.share - usual) > ODD)

    @property
    def words(self) -> str:
        """Return their number, their power and limit, and the odd ones with their number."""
        parts = [counted(len(self.gpus), "GPU")]
        powers, limits = ([getattr(gpu, name).known for gpu in self.gpus] for name in ("power", "limit"))
        if None not in powers:
            of = "" if None in limits else f" of {Quantity(sum(limits), 'W')}"
            parts.append(f"{Quantity(sum(powers), 'W')}{of}")
        troubles = {gpu.trouble for gpu in self.gpus}
        if len(troubles) == 1 and "" not in troubles:
            return ", ".join([*parts, *troubles])
        odd = [f"{gpu.place} {gpu.trouble or gpu.power}" for gpu in self.odd]
        more = [f"{len(odd) - MOST_ODD} more"] if len(odd) > MOST_ODD else []
        return ", ".join([*parts, *odd[:MOST_ODD], *more])


def strips_of(gpus: Iterable[GpuView]) -> tuple[GpuStrip, ...]:
    """Return GPUs by run, those without a run last."""
    by_run: dict[str, list[GpuView]] = {}
    for gpu in gpus:
        by_run.setdefault(gpu.run, []).append(gpu)
    ordered = sorted(by_run.items(), key=lambda item: not item[0])
    return tuple(GpuStrip(run=run, gpus=tuple(each)) for run, each in ordered)


def gpu_of_live(gpu: GpuNow, wall_ns: int) -> GpuView:
    """Return a GPU of a live snapshot. ``wall_ns``: of the snapshot."""
    trouble = _trouble(gpu)
    as_of_ns = None if gpu.age_ms is None else wall_ns - gpu.age_ms * 1_000_000

    def live(value: float | None, unit: "str") -> Quantity:
        known = None if trouble else value
        return Quantity(known, unit, as_of_ns=as_of_ns, absent=trouble or "the driver does not say it")  # type: ignore[arg-type]

    most_mw = gpu.found_mw or gpu.most_mw or gpu.limit_mw
    return GpuView(
        gpu=gpu.gpu,
        host=gpu.host,
        index="-" if gpu.index is None else str(gpu.index),
        model=gpu.model or "unknown model",
        power=live(thousandth(gpu.power_mw), "W"),
        limit=live(thousandth(gpu.limit_mw), "W"),
        found=Quantity(thousandth(gpu.found_mw), "W"),
        most=Quantity(thousandth(most_mw), "W"),
        energy=Quantity(
            thousandth(gpu.energy_mj), "J", as_of_ns=as_of_ns, absent="it has no energy counter"
        ),
        temperature=live(gpu.temperature_c, "°C"),
        utilization=live(gpu.utilization_pct, "%"),
        clock=live(gpu.clock_mhz, "MHz"),
        memory=live(_gib(gpu.memory_bytes), "GiB"),
        memory_total=live(_gib(gpu.memory_total_bytes), "GiB"),
        step_energy=live(gpu.step_j, "J/step"),
        run=gpu.run or "",
        trouble=trouble,
        gone=gpu.state == "gone",
    )  # fmt: skip


def _trouble(gpu: GpuNow) -> str:
    if gpu.state == "gone":
        return f"gone: {gpu.why}"
    if gpu.age_ms is None:
        return "no reading yet"
    if gpu.state == "silent":
        return f"no reading for {seconds(gpu.age_ms / 1000, 2)}"
    return ""


def shared_words(gpu: GpuNow) -> str:
    """Return that a GPU is shared, with the cure. Empty: it is not."""
    if not gpu.others or gpu.state == "gone":
        return ""
    processes = (
        "a process of no run computes" if gpu.others == 1 else f"{gpu.others} processes of no run compute"
    )
    return (
        f"{gpu.host}:{gpu.index}: {processes} on it, and the energy is in that of its runs. End that, or give"
        " it another GPU"
    )


class ProcessView(Struct, frozen=True, kw_only=True):
    """A process that computes on a GPU."""

    host: str
    index: str
    """Of the GPU."""
    pid: str
    user: str
    memory: Quantity
    command: str
    run: str


def processes_of_live(gpu: GpuNow) -> tuple[ProcessView, ...]:
    """Return the processes on a GPU, those with the most memory first."""
    if gpu.state != "there":
        return ()
    index = "-" if gpu.index is None else str(gpu.index)
    found = [
        ProcessView(
            host=gpu.host,
            index=index,
            pid=str(each.pid),
            user=each.user or ABSENT,
            memory=Quantity(_gib(each.memory_bytes), "GiB", absent="the driver does not say it"),
            command=each.command or ABSENT,
            run=each.run or ABSENT,
        )
        for each in gpu.processes or ()
    ]
    if gpu.processes_left_out:
        more = f"{gpu.processes_left_out:,} more processes with less memory"
        nothing = Quantity(None, "GiB")
        found.append(
            ProcessView(host=gpu.host, index=index, pid="", user="", memory=nothing, command=more, run="")
        )
    return tuple(found)


def _gib(size: int | None) -> float | None:
    return None if size is None else size / GIB
