"""`show_env`: prints what is installed and which devices there are, with Zeus's name."""

import subprocess
import sys


def show_env() -> None:
    """Print what `zeus-stream doctor` finds: versions, services, GPUs, permissions."""
    subprocess.run([sys.executable, "-m", "zeus_stream", "doctor"], check=False)


if __name__ == "__main__":
    show_env()
