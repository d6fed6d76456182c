"""Time from nothing to the first joules of one's own script: ``python -m benchmarks.cost.first_joule``.

Each tool is installed into a new environment, as its own page says, and measures the same second of work on
the same stand-in of NVML (`tests/gpu`), a GPU that draws 100 W. Ours is cloned from this checkout, so the
time of a download of the repository is not in it. ``--only TOOL`` measures one of them. Installations use
whatever the package client has in its cache; the first run of a machine is slower.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT, options
from tests.gpu import stand_in

POWER_MW, PERIOD_NS = 100_000, 100_000_000
OURS = """
import time
import zeus_stream
for batch in zeus_stream.steps(range(20)):
    time.sleep(0.05)
"""
ZEUS = """
import time
from zeus.monitor import ZeusMonitor
monitor = ZeusMonitor(gpu_indices=[0])
monitor.begin_window("training", sync_execution=False)
for batch in range(20):
    time.sleep(0.05)
print("energy", monitor.end_window("training", sync_execution=False).total_energy, "J")
"""
CODECARBON = """
import time
from codecarbon import OfflineEmissionsTracker
tracker = OfflineEmissionsTracker(country_iso_code="USA", save_to_file=False, log_level="error")
tracker.start()
for batch in range(20):
    time.sleep(0.05)
tracker.stop()
print("energy", tracker.final_emissions_data.gpu_energy * 3.6e6, "J")
"""

NVITOP = """
import time
from nvitop import Device, ResourceMetricCollector
collector = ResourceMetricCollector(Device.all())
with collector("training"):
    for batch in range(20):
        time.sleep(0.05)
    found = collector.collect()
(watts,) = [value for name, value in found.items() if name.endswith("power_usage (W)/mean")]
print("energy", watts * found["training/duration (s)"], "J")
"""
"""nvitop knows watts and no joules: mean power times duration."""


@dataclass(frozen=True)
class Tool:
    """A tool, what its user types after ``python -m venv env``, and the script with its lines."""

    name: str
    commands: tuple[str, ...]
    script: str
    lines: int
    """Lines of the script that are the tool's."""


def installed(package: str) -> tuple[str, ...]:
    """Return what a user types for a tool that is installed and imported."""
    return f"env/bin/pip install --quiet {package}", "env/bin/python train.py"


ENVIRONMENT = f"{sys.executable} -m venv env"
TOOLS = (
    Tool(
        "zeus-stream",
        (
            f"git clone --quiet {ROOT} zeus-stream",
            "env/bin/pip install --quiet './zeus-stream[services]'",
            "env/bin/zeus-stream run -- env/bin/python train.py",
        ),
        OURS,
        2,
    ),
    Tool("zeus 0.16", installed("zeus==0.16.0"), ZEUS, 4),
    Tool("codecarbon", installed("codecarbon"), CODECARBON, 5),
    Tool("nvitop", installed("nvitop"), NVITOP, 6),
)


def main() -> None:
    given = options(__doc__, choices={"only": [tool.name for tool in TOOLS]}, only=str)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f};"
        " true energy about 100 J"
    )
    print(
        f"{'tool':<14} {'commands':>8} {'lines':>6} {'install s':>10} {'first joule s':>14} {'joules':>8}"
        f" {'MB':>6}"
    )
    for tool in TOOLS:
        if given.only not in (None, tool.name):
            continue
        with tempfile.TemporaryDirectory(prefix="fj-") as directory:
            measure(tool, Path(directory))


def measure(tool: Tool, folder: Path) -> None:
    library = stand_in.build(folder)
    gpus = stand_in.StandIn(folder / "gpus")
    gpus.gpus[0].run(POWER_MW, PERIOD_NS)
    (folder / "train.py").write_text(tool.script, encoding="utf-8")
    smi = folder / "bin" / "nvidia-smi"  # CodeCarbon runs it to see whether there is a driver
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\n", encoding="ascii")
    smi.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ZEUS_STREAM")}
    environment = {**clean, **gpus.environment(library), "ZEUS_STREAM_DIR": str(folder / "zs")}
    environment["ZEUS_STREAM_FLUSH_S"] = "60"  # on a busy host as well, the report is waited for
    environment["PATH"] = f"{smi.parent}:{environment['PATH']}"
    begin = time.perf_counter()
    ready, output = begin, ""
    for command in (ENVIRONMENT, *tool.commands):
        ready = time.perf_counter()
        done = subprocess.run(  # noqa: S602  (what a person types)
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        output = done.stdout + done.stderr
        if done.returncode:
            sys.exit(f"{tool.name}: `{command}` failed: {output[-2000:]}")
    end = time.perf_counter()
    found = re.search(r"^energy\s+([\d.,]+)(?:\s*J)?", output, re.MULTILINE)
    joules = f"{float(found[1].replace(',', '')):.1f}" if found else "none"
    megabytes = sum(file.lstat().st_size for file in (folder / "env").rglob("*") if file.is_file()) / 1e6
    install_s, all_s = f"{ready - begin:.1f}", f"{end - begin:.1f}"
    print(
        f"{tool.name:<14} {1 + len(tool.commands):>8} {tool.lines:>6} {install_s:>10} {all_s:>14} {joules:>8}"
        f" {megabytes:>6.0f}"
    )


if __name__ == "__main__":
    main()
