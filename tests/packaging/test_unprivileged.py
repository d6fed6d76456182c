"""The program that an administrator lets an unprivileged collector run, over a stand-in of nvidia-smi."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging" / "unprivileged" / "zeus-stream-set"
GPU = "GPU-b239f754-a781-1847-bac1-463abde2fa14"


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the script with a ``nvidia-smi`` that prints its arguments."""
    program = folder / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "$*"\n', encoding="utf-8")
    program.chmod(0o755)
    script = folder / SCRIPT.name
    path, own = "PATH=/usr/sbin", f"PATH={folder}:/usr/sbin"
    text = SCRIPT.read_text(encoding="utf-8")
    assert path in text
    script.write_text(text.replace(path, own), encoding="utf-8")
    return subprocess.run(["sh", script, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("control", "value", "option"),
    [
        ("power_limit", "187.5", "--power-limit=187.5"),
        ("graphics_clock", "1380", "--lock-gpu-clocks=1380,1380"),
        ("graphics_clock", "unlocked", "--reset-gpu-clocks"),
        ("memory_clock", "877", "--lock-memory-clocks=877,877"),
        ("memory_clock", "unlocked", "--reset-memory-clocks"),
    ],
)
def test_each_control_is_one_option_of_nvidia_smi(
    tmp_path: Path, control: str, value: str, option: str
) -> None:
    done = run(tmp_path, control, GPU, value)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"--id={GPU} {option}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("power_limit", GPU, "unlocked"),
        ("power_limit", GPU, "150 --gpu-reset"),
        ("power_limit", GPU, ""),
        ("power_limit", f"{GPU} --gpu-reset", "150"),
        ("power_limit", "0", "150"),
        ("power_limit", "", "150"),
        ("--gpu-reset", GPU, "150"),
        (),
    ],
)
def test_nothing_else_is_passed_to_it(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr
