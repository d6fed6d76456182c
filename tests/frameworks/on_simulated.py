"""Run a script of torch as it is, while each step of its optimizer is work for a simulated GPU.

python -m tests.frameworks.on_simulated [--zeus] SCRIPT [ARGUMENTS...]

With ``--zeus`` the script is one of Zeus's users: its imports of ``zeus`` become those of
``zeus_stream.zeus``, which is all that its author has to change, and what it asks of CUDA happens on the CPU.
FSDP refuses a CPU: its parameters are sharded by ``fully_shard``, which torch runs on Gloo.
Weights that it would quantize to 4 bits stay as they are: that needs CUDA.
"""

import re
import runpy
import sys
import tempfile
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zeus_stream.simulated_gpu.accelerator import attach

WORK_S = 0.03
OPERATORS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
"""Operators that torchvision expects at import. Its wheel for CUDA lacks them beside a torch for CPUs."""


_kept: list[torch.library.Library] = []


def main() -> None:
    script, *sys.argv[1:] = sys.argv[1:]
    migrated = script == "--zeus"
    if migrated:
        script, *sys.argv[1:] = sys.argv[1:]
    sys.argv[0] = script
    if find_spec("torchvision") and torch.version.cuda is None and "+cpu" not in version("torchvision"):
        define_operators()
    with attach("imagenet") as gpu, tempfile.TemporaryDirectory() as directory:

        def work(*_: Any) -> None:
            gpu.run(WORK_S)

        register_optimizer_step_pre_hook(work)
        if migrated:
            compute_on_the_cpu()
            script = str(with_imports_changed(Path(script), Path(directory)))
        runpy.run_path(script, run_name="__main__")


def define_operators() -> None:
    """Define the operators, so that torchvision can be imported. None of these scripts calls one."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    _kept.append(library)  # it undefines them when it is freed
    for name, signature in OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(signature)


def with_imports_changed(script: Path, directory: Path) -> Path:
    """Copy a script into a directory, with ``from zeus.`` as ``from zeus_stream.zeus.``; return the copy."""
    text = script.read_text(encoding="utf-8")
    changed, count = re.subn(r"^from zeus\.", "from zeus_stream.zeus.", text, flags=re.MULTILINE)
    assert count, "it imports Zeus"
    copy = directory / script.name
    copy.write_text(changed, encoding="utf-8")
    return copy


class Event:
    """An event of CUDA, on the clock of the CPU."""

    def __init__(self, **_: Any) -> None:
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def elapsed_time(self, other: "Event") -> float:
        return 1000 * (other.at_s - self.at_s)


def unless_a_gpu(move: Any) -> Any:
    """Return ``to`` that does nothing when the place is the number of a GPU."""

    def to(self: Any, *arguments: Any, **more: Any) -> Any:
        if arguments and type(arguments[0]) is int:
            return self
        return move(self, *arguments, **more)

    return to


def compute_on_the_cpu() -> None:
    """Let a script that asks for CUDA and NCCL compute on the CPU, with Gloo."""

    def stay(self: Any, *_: Any, **__: Any) -> Any:
        return self

    def init_process_group(backend: str, *arguments: Any, **more: Any) -> None:
        begin("gloo" if backend == "nccl" else backend, *arguments, **more)

    class OnCpu(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module: torch.nn.Module, **_: Any) -> None:
            super().__init__(module)

    def no_4_bits(*_: Any, **__: Any) -> None:
        return None

    def sharded(module: torch.nn.Module) -> Any:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        whole = torch.distributed.fsdp.fully_shard(module, mesh=mesh)
        whole.set_force_sum_reduction_for_comms(True)  # Gloo has no average
        return whole

    begin = torch.distributed.init_process_group
    torch.cuda.set_device = lambda _: None
    torch.cuda.Event = Event
    torch.nn.Module.cuda = torch.Tensor.cuda = stay
    torch.nn.Module.to = unless_a_gpu(torch.nn.Module.to)
    torch.Tensor.to = unless_a_gpu(torch.Tensor.to)
    torch.distributed.fsdp.FullyShardedDataParallel = sharded
    torch.distributed.init_process_group = init_process_group
    torch.nn.parallel.DistributedDataParallel = OnCpu
    if find_spec("transformers") is not None:
        import transformers

        transformers.BitsAndBytesConfig = no_4_bits


if __name__ == "__main__":
    main()
