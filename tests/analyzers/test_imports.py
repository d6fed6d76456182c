"""Modules that services leave unloaded: each of these takes 40 to 100 ms of their start, and memory."""

import subprocess
import sys

SHOWN = """
import sys
import analyzers.archive.process.child_process
print(*sorted({"numpy", "zmq", "anyio"} & set(sys.modules)))
import analyzers.service.analyzer
print(*sorted({"duckdb", "pyarrow"} & set(sys.modules)), "then", end=" ")
import analyzers.archive.process.store_process
print(*sorted({"pyarrow.compute", "pyarrow.parquet", "pyarrow.csv"} & set(sys.modules)))
"""


def test_the_analyzer_loads_no_store_and_the_store_no_functions_of_arrow() -> None:
    done = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["then"]
