"""Run a script of torch as it is, while each step of its optimizer is work for a simulated GPU.

python -m tests.frameworks.on_simulated SCRIPT [ARGUMENTS...]
"""

import runpy
import sys
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from zeus_stream.simulated_gpu.accelerator import attach

WORK_S = 0.03


def main() -> None:
    script, *sys.argv[1:] = sys.argv[1:]
    sys.argv[0] = script
    with attach("imagenet") as gpu:

        def work(*_: Any) -> None:
            gpu.run(WORK_S)

        register_optimizer_step_pre_hook(work)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
