"""A folder that another user filled with modules of the names that ours import."""

import sys
from pathlib import Path

from zeus_stream.service_packages import ANALYZER, COLLECTOR, SCREENS

OURS = ("zeus_stream", "collectors", "analyzers", "msgpack", "msgspec", "zmq", "tests")


def plant(folder: Path, trace: Path) -> None:
    """Make a folder of modules that leave a trace when one is imported."""
    folder.mkdir()
    for name in {*sys.stdlib_module_names, *OURS, *COLLECTOR, *ANALYZER, *SCREENS}:
        (folder / f"{name}.py").write_text(
            f"with open({str(trace)!r}, 'a') as trace: trace.write({name!r} + ' ')\n"
        )
