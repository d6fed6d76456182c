"""A device of another distribution, found by its entry point: the example of the guide."""

import re
from pathlib import Path

import pytest

from collectors.devices import registry
from tests.conformance.devices import KINDS
from tests.processes.setup import Host, collector
from zeus_stream.errors import SettingsError
from zeus_stream.settings import list_settings

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-device.md"


def example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the example as pip would: its module, and the metadata with its entry point."""
    packages = tmp_path / "site"
    info = packages / "power_strip-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "power_strip.py").write_text(example("python"), encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: power-strip\nVersion: 1.0\n")
    name, target = re.findall(r"^(\w+) = \"(.*)\"", example("toml"), re.MULTILINE)[0]
    (info / "entry_points.txt").write_text(f"[zeus_stream.devices]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(str(packages))
    return packages


def test_the_guides_device_is_short_and_a_collector_samples_it(installed: Path, zeus_dir: Path) -> None:
    assert installed.exists()
    assert len([line for line in example("python").splitlines() if line.strip()]) <= 22
    nothing = Host("strip", "GPU-strip", lambda: 0, lambda _: None, lambda _: 0)
    with collector(nothing, zeus_dir) as running:
        rows = running.rows()
        assert (rows["state"], rows["power limit"]) == ("there", "cannot be set")


def test_a_kind_that_is_not_there_names_those_that_are(installed: Path) -> None:
    assert installed.exists()
    with pytest.raises(SettingsError, match="nvml, amd, cpu, simulated:MODELxCOUNT, recorded:DIR, strip"):
        registry.find("fpga")


def test_a_kind_that_cannot_be_loaded_says_which_package_is_wrong(installed: Path, tmp_path: Path) -> None:
    (installed / "power_strip.py").write_text("import no_such_module")
    with pytest.raises(SettingsError, match=r"power_strip:kind.*no_such_module.*Mend or remove"):
        registry.open_bus("strip", tmp_path)


def test_help_and_conformance_know_every_kind_that_is_built_in() -> None:
    text = list_settings()["device"].text
    assert all(kind.spelling in text for kind in registry.BUILT_IN.values())
    benches = {bench.__name__.partition("_")[0] for bench in KINDS}
    assert benches == {
        "rapl" if name == "cpu" else name for name in registry.BUILT_IN if name != "recorded"
    }, "what a recording answers is that of its device"
