"""The sensor cards that the package brings, made again: of the published recording and of simulated models.

python -m benchmarks.cards              prints each card, and which of them differ from those in the package
python -m benchmarks.cards --write      writes them to collectors/devices/cards
"""

import argparse
import csv
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from benchmarks.gpu import read_recording
from benchmarks.harness import ROOT
from collectors.device import Device, PowerSample
from collectors.devices.cards.known_cards import SHIPPED, shipped_cards
from collectors.devices.cards.sensor_card import SensorCard, make_card, read_closely
from collectors.devices.recorded import RecordedBus
from collectors.devices.simulated import SimulatedBus
from collectors.devices.simulated_spec import Spec, parse
from tests.simulation.scheduled_loads import ScheduledLoads
from zeus_stream.simulated_gpu.shared_memory import LimitChange, Load
from zeus_stream.simulated_gpu.workloads import load as load_models

RECORDED = ROOT.parent / "shared" / "data" / "power_meter"
S = 1_000_000_000
H100 = ROOT / "tests" / "data" / "h100_square"
H100_SAMPLES = ROOT / "tests" / "data" / "h100_samples" / "samples-0.csv"
RTX_3090 = "NVIDIA GeForce RTX 3090"
SQUARE_S, SIMULATED_S, HALF_NS = 12, 20, 370_000_000


class Time:
    """A clock that only sleepers move."""

    def __init__(self) -> None:
        self.now_ns = 10**12

    def now(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def card_of(device: Device, seconds: float, time: Time) -> SensorCard:
    reads = read_closely(device, time.now_ns + round(seconds * 1e9), time.sleep, 0.001, time.now)
    return make_card(device.describe(), reads)


def simulated(key: str) -> SensorCard:
    """Return the card of a simulated model under a square load."""
    time = Time()

    def surroundings(_gpu: str, spec: Spec) -> ScheduledLoads:
        loads = ScheduledLoads(first=LimitChange(time.now_ns - S, spec.model.default_limit_mw))
        begins = range(time.now_ns, time.now_ns + SIMULATED_S * S, 2 * HALF_NS)
        workload = next(iter(spec.model.workloads))
        loads.pending += [Load(begin_ns, begin_ns + HALF_NS, workload) for begin_ns in begins]
        return loads

    bus = SimulatedBus(parse(f"simulated:{key}"), surroundings, time.now, time.sleep, "host")
    return card_of(bus.discover()[0], SIMULATED_S, time)


def recorded() -> SensorCard:
    """Return the card of the RTX 3090 that was recorded beside a meter."""
    time = Time()
    (device,) = RecordedBus(RECORDED / "rtx3090_square", time.now).discover()
    return replace(card_of(device, SQUARE_S, time), name=RTX_3090)


def h100() -> SensorCard:
    """Return the card of an H100 that was recorded under a square load."""
    time = Time()
    (device,) = RecordedBus(H100, time.now).discover()
    with (H100 / "marks.csv").open() as file:
        marks_ns = [(int(row["begin_ns"]), int(row["end_ns"])) for row in csv.DictReader(file)]
    begun_ns = int((H100 / "begun_ns").read_text())
    reads = read_recording(H100 / "samples-0.csv", begun_ns)
    card = make_card(device.describe(), reads, marks_ns=marks_ns)
    with H100_SAMPLES.open() as file:  # of another time
        rows = list(csv.DictReader(file))
    marks_ns = [(int(row["begin_ns"]), int(row["end_ns"])) for row in rows if row["what"] == "work"]
    kept = [PowerSample(int(row["end_ns"]), int(row["value"])) for row in rows if row["what"] == "sample"]
    sampled = make_card(device.describe(), reads, marks_ns=marks_ns, power_samples=kept)
    return replace(card, power_samples=sampled.power_samples)


def cards() -> Iterator[tuple[str, SensorCard]]:
    """Yield short names and cards."""
    yield "rtx3090", recorded()
    yield "h100-sxm", h100()
    for key in load_models():
        yield f"simulated-{key}", simulated(key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    shipped = shipped_cards()
    for name, card in cards():
        print(f"{name}{'' if shipped.get(name) == card else ', which differs'}", *card.lines(), sep="\n  ")
        if write:
            SHIPPED.mkdir(exist_ok=True)
            text = msgspec.json.format(msgspec.json.encode(card))
            (SHIPPED / f"{name}.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    main()
