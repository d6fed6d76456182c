"""What the wheel needs: the list that is audited, and the bill of materials."""

import json
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from zeus_stream.service_packages import ANALYZER, COLLECTOR, SCREENS

ROOT = Path(__file__).parents[2]


def wheel_requirements() -> dict[str, str]:
    """Return the version of each package, by its name."""
    done = subprocess.run(
        [sys.executable, ROOT / "packaging" / "wheel_requirements.py"],
        check=True,
        capture_output=True,
        text=True,
    )
    return dict(line.split("==") for line in done.stdout.splitlines())


def test_what_the_wheel_needs_is_locked_with_all_that_it_needs_and_no_tool_of_ours() -> None:
    needed = wheel_requirements()
    imported = packages_distributions()
    ours = {
        canonicalize_name(name)
        for module in (*COLLECTOR, *ANALYZER, *SCREENS)
        for name in imported.get(module, ())
    }
    assert ours <= needed.keys()
    assert {"h11", "markdown-it-py", "msgspec"} <= needed.keys(), "what they need in turn"
    assert not {"pytest", "mypy", "hypothesis", "ruff"} & needed.keys()
    lock = (ROOT / "requirements.lock").read_text()
    for name, version in needed.items():
        assert f"{name}=={version}" in lock


def test_the_bill_of_materials_is_not_stale() -> None:
    text = (ROOT / "packaging" / "sbom.cdx.json").read_text()
    assert "externalReferences" not in text, "hosts of package indexes"
    bill = json.loads(text)
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "zeus-stream"
    parts = {part["name"]: part["version"] for part in bill["components"]}
    assert parts == wheel_requirements(), "write it again: make sbom"
    for part in bill["components"]:
        assert part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}"
