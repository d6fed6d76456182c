"""The energy of one window, GPU by GPU: a query over the archive, its text and its JSON."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import pyarrow as pa
from msgspec import Struct
from rich.text import Text

from zeus_stream.quoting import quoted
from zeus_stream.screens.text.tables import console_of, print_facts, print_rows, write_text
from zeus_stream.views.quantity import ABSENT, WH_J, Quantity, figure, joules, seconds, watts, with_bounds

_WINDOW = """
SELECT gpu, gpus.index, gpus.name, duration_s, energy_j, energy_p2_5_j, energy_p97_5_j,
    energy_j / duration_s AS average_power_w, quality, of_host(gpu) AS of_host
FROM windows LEFT JOIN gpus USING (gpu) WHERE run = {run} AND kind = 'window' ORDER BY gpus.index, gpu
"""


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
        rows = [
            [
                _index(part),
                part["name"] or part["gpu"],
                with_bounds(_energy(part)),
                watts(part["average_power_w"]),
            ]
            for part in bill.parts
        ]
        print_rows(console, ("GPU", "model", "energy", "power"), rows, left=2)
    console.print(Text(f"\nLater: {sql}", style="dim"), soft_wrap=True)


def _facts(bill: Bill) -> list[tuple[str, str]]:
    facts = [("time", seconds(bill.duration_s, 4))]
    if bill.energy_j is None or bill.interval_j is None:
        return [*facts, ("energy", f"missing: {bill.missing}")]
    energy = Quantity(bill.energy_j, "J", *bill.interval_j)
    facts += [
        ("energy", f"{with_bounds(energy)}, {figure(bill.energy_j / WH_J, 'Wh')}"),
        ("power", f"{watts(bill.energy_j / bill.duration_s)} on average"),
    ]
    if bill.host_j is not None:
        facts.append(("host", f"{joules(bill.host_j)} of its CPUs and DRAM, not in the energy above"))
    facts += [("warning", remark) for remark in sorted({part["quality"] for part in bill.parts} - {"ok"})]
    if len(bill.parts) == 1:
        (part,) = bill.parts
        facts.append(("GPU", f"{_index(part)}, {part['name'] or 'of unknown model'}, {part['gpu']}"))
    return facts


def _energy(part: Mapping[str, Any]) -> Quantity:
    return Quantity(part["energy_j"], "J", part["energy_p2_5_j"], part["energy_p97_5_j"])


def _index(part: Mapping[str, Any]) -> str:
    return ABSENT if part["index"] is None else str(part["index"])


def write_bill(bill: Bill, out: TextIO) -> None:
    """Write a bill as one JSON object. A figure that is not known is null; ``missing`` has the reason."""
    energy_j, (low_j, high_j) = bill.energy_j, bill.interval_j or (None, None)
    content = {
        "name": bill.name,
        "duration_s": bill.duration_s,
        "energy_j": energy_j,
        "energy_p2_5_j": low_j,
        "energy_p97_5_j": high_j,
        "energy_wh": None if energy_j is None else energy_j / WH_J,
        "average_power_w": None if energy_j is None else energy_j / bill.duration_s,
        "cpu_energy_j": bill.host_j,
        "missing": bill.missing,
        "gpus": [
            {name: value for name, value in part.items() if name not in ("duration_s", "of_host")}
            for part in bill.parts
        ],
    }
    write_text(json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n", out)
