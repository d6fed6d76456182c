"""``python -m zeus_stream``: the command line."""

from zeus_stream.cli.main import main

if __name__ == "__main__":
    main()
