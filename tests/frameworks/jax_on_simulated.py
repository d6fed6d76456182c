"""Run a script of JAX and Zeus with only its imports changed; its jitted calls are work of a simulated GPU.

python -m tests.frameworks.jax_on_simulated SCRIPT

A call of a jitted function returns its first argument: a CPU would need an hour for what Zeus's example
asks of a GPU. Everything else of JAX is real, the wait at both ends of a window among it.
"""

import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from tests.frameworks.on_simulated import with_imports_changed
from zeus_stream.simulated_gpu.accelerator import attach

CALLS = 500
"""Calls that are handed to the simulated GPU at once."""
CALL_S = 100e-6
"""Work of a call."""


def main() -> None:
    script = Path(sys.argv[1])
    with attach("imagenet") as gpu, tempfile.TemporaryDirectory() as directory:
        calls = 0

        def jit(_function: Callable[..., Any]) -> Callable[..., Any]:
            def call(first: Any, *_: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls % CALLS == 0:
                    gpu.run(CALLS * CALL_S)
                return first

            return call

        jax.jit = jit
        runpy.run_path(str(with_imports_changed(script, Path(directory))), run_name="__main__")


if __name__ == "__main__":
    main()
