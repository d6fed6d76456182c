"""``python -m zeus_stream`` and ``zeus-stream``: the command line."""

import sys

from zeus_stream.service_packages import absent_packages, import_services_first


def main() -> None:
    """Run the command line in a process that finds our services first."""
    import_services_first()
    if absent := absent_packages():
        sys.exit(
            f"zeus-stream: could not start: {' and '.join(absent)} not installed for {sys.executable}."
            f" Install the command and its services: {sys.executable} -m pip install 'zeus-stream[services]'."
        )
    from zeus_stream.cli.main import main as run  # noqa: PLC0415  (it may import the services)

    run(prog_name="zeus-stream")


if __name__ == "__main__":
    main()
