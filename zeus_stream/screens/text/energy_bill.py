"""The energy of one window, GPU by GPU: a query over the archive, its text and its JSON."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import pyarrow as pa
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from zeus_stream.screens.html.questions import quoted
from zeus_stream.screens.text.tables import ABSENT, console_of, print_facts, write_text

_WINDOW = """
SELECT gpu, gpus.index, gpus.name, duration_s, energy_j, energy_p2_5_j, energy_p97_5_j,
    energy_j / duration_s AS average_power_w, quality, of_host(gpu) AS of_host
FROM windows LEFT JOIN gpus USING (gpu) WHERE run = {run} AND kind = 'window' ORDER BY gpus.index, gpu
"""
J_PER_WH = 3600
MOST_PLACES = 9


class Bill(Struct, frozen=True):
    """The energy of whole GPUs during one window: joules, seconds, watts."""

    name: str
    parts: tuple[Mapping[str, Any], ...]
    """One row per GPU, never empty. A figure that was not measured is None; ``quality`` has the reason."""
    host: tuple[Mapping[str, Any], ...] = ()
    """One row per CPU and DRAM of the host, if they are read. No sum includes them."""

    @property
    def duration_s(self) -> float:
        duration_s: float = self.parts[0]["duration_s"]
        return duration_s

    @property
    def missing(self) -> str | None:
        """The reason why there is no sum, or None. A sum without one of its parts would be wrong."""
        for part in self.parts:
            if part["energy_j"] is None:
                return part["quality"] if part["gpu"] is None else f"{part['gpu']}: {part['quality']}"
        return None

    @property
    def energy_j(self) -> float | None:
        """The sum over the GPUs, None if a part is missing."""
        return None if self.missing else sum(part["energy_j"] for part in self.parts)

    @property
    def interval_j(self) -> tuple[float, float] | None:
        """The 95 % interval of `energy_j`. Errors of GPUs are independent: their squares add up."""
        energy_j = self.energy_j
        if energy_j is None:
            return None
        below_j = math.hypot(*(part["energy_j"] - part["energy_p2_5_j"] for part in self.parts))
        above_j = math.hypot(*(part["energy_p97_5_j"] - part["energy_j"] for part in self.parts))
        return max(energy_j - below_j, 0.0), energy_j + above_j

    @property
    def host_j(self) -> float | None:
        """The sum over the CPUs and DRAM of the host; None if there are none, or a part is missing."""
        energies = [part["energy_j"] for part in self.host]
        return sum(energies) if energies and None not in energies else None


def bill(answer: Callable[[str], pa.Table], run: str, name: str) -> Bill | None:
    """Return the bill of the one window of a run, or None while it is not measured."""
    rows = answer(_WINDOW.format(run=quoted(run))).to_pylist()
    parts, host = ([row for row in rows if row["of_host"] is wanted] for wanted in (False, True))
    return Bill(name, tuple(parts), tuple(host)) if parts else None


def print_bill(bill: Bill, sql: str, out: TextIO) -> None:
    """Print a bill. ``sql`` is the command that finds it again."""
    console = console_of(out)
    console.rule(Text(bill.name), align="left", style="dim")
    print_facts(console, _facts(bill))
    if len(bill.parts) > 1:
        console.print()
        console.print(_by_gpu(bill))
    console.print(Text(f"\nLater: {sql}", style="dim"), soft_wrap=True)


def _facts(bill: Bill) -> list[tuple[str, str]]:
    facts = [("time", f"{bill.duration_s:.3f} s")]
    energy_j, interval_j = bill.energy_j, bill.interval_j
    if energy_j is None or interval_j is None:
        return [*facts, ("energy", f"missing: {bill.missing}")]
    low_j, high_j = interval_j
    width_j = high_j - low_j
    energy, low, high = (_shown(value, width_j) for value in (energy_j, low_j, high_j))
    watt_hours = _shown(energy_j / J_PER_WH, width_j / J_PER_WH)
    power = _shown(energy_j / bill.duration_s, width_j / bill.duration_s)
    facts += [
        ("energy", f"{energy} J (95 %: {low} to {high}), {watt_hours} Wh"),
        ("power", f"{power} W on average"),
    ]
    if bill.host_j is not None:
        facts.append(("host", f"{bill.host_j:,.1f} J of its CPUs and DRAM, not in the energy above"))
    facts += [("warning", remark) for remark in sorted({part["quality"] for part in bill.parts} - {"ok"})]
    if len(bill.parts) == 1:
        (part,) = bill.parts
        facts.append(("GPU", f"{_index(part)}, {part['name'] or 'of unknown model'}, {part['gpu']}"))
    return facts


def _shown(value: float, width: float) -> str:
    """Format a figure with as many decimals as its interval justifies: two digits of its width."""
    places = 1 - math.floor(math.log10(width)) if width > 0 else MOST_PLACES
    return f"{value:,.{min(max(places, 0), MOST_PLACES)}f}"


def _index(part: Mapping[str, Any]) -> str:
    return ABSENT if part["index"] is None else str(part["index"])


def _by_gpu(bill: Bill) -> Table:
    grid = Table.grid(padding=(0, 3))
    grid.add_column(no_wrap=True)
    for _ in range(4):
        grid.add_column(justify="right", no_wrap=True)
    heads = ("GPU", "energy J", "2.5 %", "97.5 %", "power W", "")
    grid.add_row(*(Text(head, style="bold") for head in heads))
    for part in bill.parts:
        figures = [ABSENT] * 4
        if part["energy_j"] is not None:
            width_j = part["energy_p97_5_j"] - part["energy_p2_5_j"]
            figures = [
                _shown(part[name], width_j) for name in ("energy_j", "energy_p2_5_j", "energy_p97_5_j")
            ]
            figures.append(_shown(part["average_power_w"], width_j / bill.duration_s))
        grid.add_row(*map(Text, (_index(part), *figures, part["name"] or part["gpu"])))
    return grid


def write_bill(bill: Bill, out: TextIO) -> None:
    """Write a bill as one JSON object. A figure that is not known is null; ``missing`` has the reason."""
    energy_j, (low_j, high_j) = bill.energy_j, bill.interval_j or (None, None)
    content = {
        "name": bill.name,
        "duration_s": bill.duration_s,
        "energy_j": energy_j,
        "energy_p2_5_j": low_j,
        "energy_p97_5_j": high_j,
        "energy_wh": None if energy_j is None else energy_j / J_PER_WH,
        "average_power_w": None if energy_j is None else energy_j / bill.duration_s,
        "cpu_energy_j": bill.host_j,
        "missing": bill.missing,
        "gpus": [
            {name: value for name, value in part.items() if name not in ("duration_s", "of_host")}
            for part in bill.parts
        ],
    }
    write_text(json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n", out)
