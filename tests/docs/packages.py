"""The picture of the packages in docs/architecture.md, drawn from the imports."""

from collections import defaultdict

from tests import house

WIDTH = 34


def packages() -> dict[str, frozenset[str]]:
    """Return the packages that each package imports, without modules that lie beside packages."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, others in house.imports().items():
        mine = _package(module)
        if mine:
            graph[mine] |= {_package(other) for other in others} - {mine, ""}
    return {package: frozenset(others) for package, others in graph.items()}


def _package(module: str) -> str:
    """Return the package of a module, such as ``analyzers.archive``; empty for a module of the top."""
    top, _, rest = module.partition(".")
    first = rest.partition(".")[0]
    is_folder = bool(first) and (house.ROOT / top / first).is_dir()
    return f"{top}.{first}" if is_folder else ""


def layers(graph: house.Graph) -> list[list[str]]:
    """Return the packages by layer, the lowest first: a package lies above all that it imports.

    Packages that import each other share a layer.
    """
    of = house.cycles(graph)
    levels: dict[str, int] = {}

    def level(group: str) -> int:
        if group not in levels:
            members = [package for package in graph if of[package] == group]
            below = {of[other] for member in members for other in graph[member]} - {group}
            levels[group] = 1 + max((level(other) for other in below), default=-1)
        return levels[group]

    found: dict[int, list[str]] = defaultdict(list)
    for package in sorted(graph):
        found[level(of[package])].append(package)
    return [found[number] for number in sorted(found)]


def picture() -> str:
    """Return the layers as text, the highest first, one column for each of the three folders."""
    head = "".join(f"{folder:{WIDTH}}" for folder in house.PRODUCT).rstrip()
    lines = [head, "-" * (3 * WIDTH - 10)]
    for layer in reversed(layers(packages())):
        columns = [
            [name.partition(".")[2] for name in layer if name.startswith(f"{folder}.")]
            for folder in house.PRODUCT
        ]
        rows = [_wrapped(column) for column in columns]
        for number in range(max(map(len, rows))):
            cells = [row[number] if number < len(row) else "" for row in rows]
            lines.append("".join(f"{cell:{WIDTH}}" for cell in cells).rstrip())
        lines.append("")
    return "```\n" + "\n".join(lines).rstrip() + "\n```\n"


def _wrapped(names: list[str]) -> list[str]:
    """Return names as lines that fit a column."""
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + 2 + len(name) < WIDTH - 1:
            lines[-1] += f", {name}"
        else:
            lines.append(name)
    return lines
