"""CPUs made of files, as /sys/class/powercap shows them, in arithmetic time."""

from pathlib import Path

RANGE_UJ = 262_143_328_850
"""Of most packages: 262 kJ."""


class Powercap:
    """A tree of zones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.now_ns = 10**12
        self._zones: list[Path] = []

    def now(self) -> int:
        return self.now_ns

    def package(self, number: int, range_uj: int = RANGE_UJ) -> Path:
        """Add a package, and the parts of it that are no devices."""
        package = self._zone(f"intel-rapl:{number}", f"package-{number}", range_uj)
        self._zone(f"intel-rapl:{number}:0", "core", range_uj)
        return package

    def memory(self, package: int) -> Path:
        return self._zone(f"intel-rapl:{package}:1", "dram", 65_712_999_613)

    def board(self, number: int) -> Path:
        return self._zone(f"intel-rapl:{number}", "psys", RANGE_UJ)

    def draw(self, power_w: int, seconds: float) -> None:
        """Let time pass in which every zone draws the power; a counter at its end starts over."""
        self.now_ns += round(seconds * 1e9)
        for zone in self._zones:
            file = zone / "energy_uj"
            if file.exists():
                energy_uj = int(file.read_text()) + round(power_w * seconds * 1e6)
                file.write_text(f"{energy_uj % int((zone / 'max_energy_range_uj').read_text())}\n")

    def _zone(self, directory: str, name: str, range_uj: int) -> Path:
        zone = self._directory / directory
        zone.mkdir()
        for file, content in (("name", name), ("energy_uj", 1000), ("max_energy_range_uj", range_uj)):
            (zone / file).write_text(f"{content}\n")
        self._zones.append(zone)
        return zone
