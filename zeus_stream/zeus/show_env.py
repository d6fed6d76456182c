"""`show_env`: prints what is installed and which devices there are, with Zeus's name."""

import subprocess

from zeus_stream.service_packages import python_child


def show_env() -> None:
    """Print what `zeus-stream doctor` finds: versions, services, GPUs, permissions."""
    subprocess.run(python_child("zeus_stream", "doctor"), check=False)  # noqa: S603  (this package)


if __name__ == "__main__":
    show_env()
