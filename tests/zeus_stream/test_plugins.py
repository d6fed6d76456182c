"""Each seam is there by name, for packages that cannot import what the wheel hides."""

import subprocess
import sys

import pytest

from zeus_stream import plugins

UNUSED = plugins.SITE_SETTINGS, plugins.HOST_AT_BROKER, plugins.SITE_STATUS, *plugins.ROSTERS.values()


@pytest.mark.parametrize("name", plugins.SEAMS)
def test_a_seam_is_found_by_its_name(name: str) -> None:
    assert getattr(plugins, name) is plugins.find(plugins.SEAMS[name])


def test_a_name_that_is_no_seam_is_refused_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"has no Interpreter: its names are Bus, Description"):
        plugins.Interpreter  # noqa: B018


def test_what_a_site_adds_is_not_imported_before_it_is_asked_for() -> None:
    modules = [place.partition(":")[0] for place in UNUSED]
    code = (
        "import sys, zeus_stream.plugins, collectors.service, analyzers.service;"
        f"sys.exit(str([name for name in {modules} if name in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
