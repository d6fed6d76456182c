"""The manual page, from the help of the commands. `tests.docs.reference` writes it."""

from collections.abc import Iterator

import click

from zeus_stream.cli.main import load_commands, main

WIDTH = 78


def man_page() -> str:
    """Return the text of zeus-stream(1), in roff."""
    parts = [
        '.TH ZEUS\\-STREAM 1 "" "zeus\\-stream" "User Commands"',
        ".SH NAME",
        "zeus\\-stream \\- energy of training steps, and the power limit that costs least",
        ".SH SYNOPSIS",
        ".B zeus\\-stream",
        ".I COMMAND",
        "[OPTIONS] [ARGUMENTS]",
    ]
    for heading, commands in load_commands().items():
        parts.append(f".SH {heading.upper()}")
        for command in commands:
            parts += _command(command, ("zeus-stream", command.name or ""))
    return "\n".join(parts) + "\n"


def _command(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    root = click.Context(main, info_name=path[0], **main.context_settings)
    context = click.Context(command, info_name=" ".join(path[1:]), parent=root, terminal_width=WIDTH)
    formatter = click.HelpFormatter(width=WIDTH)
    command.format_help(context, formatter)
    yield f".SS {_escaped(' '.join(path))}"
    yield ".nf"
    yield from (_escaped(line) for line in formatter.getvalue().rstrip().splitlines())
    yield ".fi"
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _command(child, (*path, name))


def _escaped(line: str) -> str:
    """Return a line of text for roff: no character of it is a command."""
    text = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
