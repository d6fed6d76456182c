"""``python -m zeus_stream`` and ``zeus-stream``: the command line."""

from zeus_stream.service_packages import import_services_first


def main() -> None:
    """Run the command line in a process that finds our services first."""
    import_services_first()
    from zeus_stream.cli.main import main as run  # noqa: PLC0415  (it may import the services)

    run(prog_name="zeus-stream")


if __name__ == "__main__":
    main()
