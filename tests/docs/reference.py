"""Write the generated pages: ``python -m tests.docs.reference``. A test compares them."""

import ast
import inspect
import re
from copy import copy
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import click

from analyzers.archive.rows.tables import KINDS
from analyzers.results.table import Table
from benchmarks.figures.page import between
from tests.docs.man_page import man_page
from tests.docs.packages import picture
from tests.docs.python_page import python_page
from tests.docs.transitions import diagram
from zeus_stream.cli.main import load_commands, main
from zeus_stream.cli.options import SettingOption
from zeus_stream.settings import SECTIONS, SettingHelp, kinds, list_settings, spelled

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
MAN_PAGE = ROOT / "packaging" / "man" / "zeus-stream.1"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
NOTE = "<!-- Written by `python -m tests.docs.reference`. Do not edit. -->\n"
WIDTH = 100
HELP = re.compile(
    r"\nOptions:\n  (-h, )?--help +Show this message and exit\.\n(?=\n|\Z)"
    r"|^  (-h, )?--help +Show this message and exit\.\n|^Commands:\n.*",
    re.MULTILINE | re.DOTALL,
)
"""The option of every command, its heading if it is alone, and commands with sections of their own."""
OF_MANY = {"Format of the output.  [table]": "--format", "Write JSON for programs.": "--json"}
"""Options that many commands have, by their help: the head of the page says once what they do."""
USAGE = re.compile(r"^Usage: [^\n]*\[OPTIONS\]([^\n]*)\n\n")
"""The usage of a command: its arguments stand in its heading."""


EXAMPLES = re.compile(r"^(?: +zeus-stream [^\n]*\n(?: {4,}[^\n]*\n)*)+\n?", re.MULTILINE)
"""Examples of a command: its help and the guides have them."""


def pages() -> dict[Path, str]:
    """Return every generated page, by path."""
    return {
        FOLDER / "commands.md": _commands(),
        FOLDER / "settings.md": _settings(),
        FOLDER / "python.md": python_page(),
        FOLDER / "queries.md": _queries(),
        FOLDER / "sql.md": _sql((FOLDER / "sql.md").read_text(encoding="utf-8")),
        MAN_PAGE: man_page(),
        ARCHITECTURE: architecture(),
    }


def architecture() -> str:
    """Return the page of the architecture with the packages and the phases of a search of today."""
    page = ARCHITECTURE.read_text(encoding="utf-8")
    page = between(page, "<!-- packages -->\n", "<!-- end of packages -->", picture())
    return between(page, "<!-- phases -->\n", "<!-- end of phases -->", diagram())


def _sql(page: str) -> str:
    """Return the page of tables with the sections of row classes as these describe them.

    Sections of views, and of tables that have no class, are written by hand.
    """
    for kind in KINDS:
        name, section = kind.TABLE.name, _table(kind)
        found = re.search(rf"^### `{name}`\n.*?(?=^##)", page, re.DOTALL | re.MULTILINE)
        place = page.index("## What was received") if found is None else found.start()
        page = page[:place] + section + page[place if found is None else found.end() :]
    return page


def _table(kind: type) -> str:
    """Return the section of a row class: its docstring, its key, its columns by description."""
    table: Table = kind.TABLE  # type: ignore[attr-defined]
    key = ", ".join(f"`{name}`" for name in table.key)
    rows = [f"| {', '.join(f'`{name}`' for name in names)} | {text} |" for names, text in described(kind)]
    about = [f"### `{table.name}`\n", _markdown(inspect.getdoc(kind) or "") + f" The key is ({key}).\n"]
    return "\n".join([*about, "| column | meaning |\n|---|---|", *rows, "\n"])


def described(kind: type) -> list[tuple[list[str], str]]:
    """Return the columns of a row class in order, those together that have one description."""
    tree = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(tree, ast.ClassDef)
    computed = kind.TABLE.computed  # type: ignore[attr-defined]
    found: list[tuple[list[str], str]] = []

    def add_computed(after: str) -> None:
        for each in computed:
            if each.after == after:
                if each.help:
                    found.append(([each.name], each.help))
                else:
                    found[-1][0].append(each.name)
                add_computed(each.name)

    for node, following in pairwise([*tree.body, ast.Pass()]):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id == "TABLE":
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found.append(([node.target.id], _markdown(str(following.value.value))))
        else:
            assert found, f"{kind.__name__}.{node.target.id}: describe it, by a string after the field"
            found[-1][0].append(node.target.id)
        add_computed(node.target.id)
    return found


def _markdown(text: str) -> str:
    """Return the text of a docstring in one line, its code in single quotes."""
    return " ".join(text.replace("``", "`").split())


def _commands() -> str:
    parts = [
        "# Commands\n",
        NOTE,
        (
            "`zeus-stream COMMAND --help` prints the same, with examples. Every command has `--help`, `--dir`"
            " and `--config FILE`. *Also* lists its [settings](settings.md), and how it prints: `--json` for"
            " programs, `--format` for `table`, `csv`, `json` or `arrow`.\n"
        ),
    ]
    for heading, commands in load_commands().items():
        parts.append(f"## {heading}\n")
        for command in commands:
            parts += _command(command, ("zeus-stream", command.name or ""))
    return "\n".join(parts)


def _command(command: click.Command, path: tuple[str, ...]) -> list[str]:
    root = click.Context(main, info_name=path[0], **main.context_settings)
    own = copy(command)
    many = [OF_MANY[text] for each in command.params if (text := getattr(each, "help", None)) in OF_MANY]
    own.params = [
        each
        for each in command.params
        if not isinstance(each, SettingOption) and getattr(each, "help", None) not in OF_MANY
    ]
    context = click.Context(own, info_name=" ".join(path[1:]), parent=root, terminal_width=WIDTH)
    formatter = click.HelpFormatter(width=WIDTH)
    own.format_help(context, formatter)
    usage = USAGE.match(formatter.getvalue())
    arguments = usage[1].split(" [COMMAND]")[0].split(" COMMAND [ARGS]")[0] if usage else ""
    text = EXAMPLES.sub("", USAGE.sub("", HELP.sub("", formatter.getvalue()))).rstrip()
    parts = [f"### {' '.join(path[1:])}{arguments}\n", f"```text\n{text}\n```\n"]
    listed = [f"`{each}`" for each in many] + [
        f"`{each.opts[0]}`"
        for each in command.params
        if isinstance(each, SettingOption) and not each.hidden and each.name not in {"dir", "config"}
    ]
    if listed:
        parts.append(f"Also: {', '.join(listed)}.\n")
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            parts += _command(child, (*path, name))
    return parts


def _settings() -> str:
    parts = [
        "# Settings\n",
        NOTE,
        (
            "Every setting is an environment variable, a key of `zeus-stream.toml` in the working directory\n"
            "(or `--config FILE`), and a flag of the commands that list it: `ZEUS_STREAM_PROFILE_STEPS=60`,\n"
            "`profile_steps = 60`, `--profile-steps 60`. Flags win over variables, variables over the file.\n"
        ),
    ]
    defaults = {name: value for kind in kinds() for name, value in spelled(kind()).items()}
    for section, heading in SECTIONS.items():
        rows = [
            f"| `{name}` | {each.text} | {_default(defaults.get(name, ''), each)} |"
            for name, each in list_settings().items()
            if each.section == section
        ]
        table = ["| setting | meaning | default (range) |", "|---|---|---|", *rows]
        parts += [f"## {heading}\n", "\n".join(table) + "\n"]
    return "\n".join(parts)


def _default(text: str, of: SettingHelp) -> str:
    """Return the default of a setting, and its range if it has one."""
    within = "" if of.least is None else f"({of.least:g} to {of.most:,})"
    return " ".join(part for part in (f"`{text}`" if text else "", within) if part)


def _queries() -> str:
    shipped = files("analyzers.archive").joinpath("queries").iterdir()
    texts = {each.name.removesuffix(".sql"): each.read_text(encoding="utf-8") for each in shipped}
    answers = {name: text.partition("\n")[0].removeprefix("-- ") for name, text in sorted(texts.items())}
    folder = "../../analyzers/archive/queries"
    rows = [f"| [`@{name}`]({folder}/{name}.sql) | {answer} |" for name, answer in answers.items()]
    about = (
        "These queries are shipped: `zeus-stream sql @epochs` runs one, `zeus-stream sql --list`\n"
        "shows all. Each is a file to paste from. [The archive and its SQL](sql.md) has the columns.\n"
    )
    return "\n".join(["# Queries\n", NOTE, about, "| query | answers |\n|---|---|", *rows, ""])


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
