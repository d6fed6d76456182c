"""Write the generated pages: ``python -m tests.docs.reference``. A test compares them."""

from importlib.resources import files
from pathlib import Path

import click

from tests.docs.man_page import PAGE, man_page
from zeus_stream.cli.main import COMMANDS, main
from zeus_stream.settings import SECTIONS, Settings, spelled

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
NOTE = "<!-- Written by `python -m tests.docs.reference`. Do not edit. -->\n"
WIDTH = 100


def pages() -> dict[str, str]:
    """Return every generated page, by file name."""
    return {"commands.md": _commands(), "settings.md": _settings(), "queries.md": _queries()}


def _commands() -> str:
    parts = [
        "# Commands\n",
        NOTE,
        (
            "`zeus-stream COMMAND --help` prints the same."
            " `zeus-stream completions SHELL` completes commands and options.\n"
        ),
    ]
    for heading, commands in COMMANDS.items():
        parts.append(f"## {heading}\n")
        for command in commands:
            parts += _command(command, ("zeus-stream", command.name or ""))
    return "\n".join(parts)


def _command(command: click.Command, path: tuple[str, ...]) -> list[str]:
    root = click.Context(main, info_name=path[0])
    context = click.Context(command, info_name=" ".join(path[1:]), parent=root, terminal_width=WIDTH)
    formatter = click.HelpFormatter(width=WIDTH)
    command.format_help(context, formatter)
    text = formatter.getvalue().rstrip()
    parts = [f"### {' '.join(path[1:])}\n", f"```text\n{text}\n```\n"]
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            parts += _command(child, (*path, name))
    return parts


def _settings() -> str:
    parts = [
        "# Settings\n",
        NOTE,
        (
            "Every setting is a flag, an environment variable and a key of `zeus-stream.toml` in the\n"
            "working directory (or `--config FILE`): `--profile-steps 60`, `ZEUS_STREAM_PROFILE_STEPS=60`,\n"
            "`profile_steps = 60`. Flags win over variables, variables over the file.\n"
        ),
    ]
    defaults = spelled(Settings())
    fields = Settings.__dataclass_fields__
    for section, heading in SECTIONS.items():
        rows = [
            f"| `{name}` | {field.metadata['help']} |"
            f" {_code(defaults.get(name, ''))} | {_range(field.metadata)} |"
            for name, field in fields.items()
            if field.metadata["section"] == section
        ]
        table = ["| setting | meaning | default | range |", "|---|---|---|---|", *rows]
        parts += [f"## {heading}\n", "\n".join(table) + "\n"]
    return "\n".join(parts)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _range(about: object) -> str:
    least, most = about["least"], about["most"]  # type: ignore[index]
    return "" if least is None else f"{least:g} to {most:,}"


def _queries() -> str:
    shipped = files("analyzers.archive").joinpath("queries").iterdir()
    texts = {each.name.removesuffix(".sql"): each.read_text(encoding="utf-8") for each in shipped}
    parts = [
        "# Queries\n",
        NOTE,
        (
            "These queries are shipped: `zeus-stream sql @epochs` runs one, `zeus-stream sql --list`\n"
            "shows all. Each can also be pasted. [The archive and its SQL](sql.md) has the columns.\n"
        ),
    ]
    for name in sorted(texts):
        parts += [f"## @{name}\n", f"```sql\n{texts[name].rstrip()}\n```\n"]
    return "\n".join(parts)


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    PAGE.write_text(man_page(), encoding="utf-8")
