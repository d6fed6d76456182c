"""Counts of what the rules bound: modules, folders, functions, names, constructors and import chains.

``python -m tests.house`` prints what breaks a rule; ``--prune`` removes exceptions that are no longer needed.
"""

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).parents[1]
EXCEPTIONS: Final = Path(__file__).with_name("house_exceptions.txt")
PRODUCT: Final = ("zeus_stream", "collectors", "analyzers")
CHECKED: Final = (*PRODUCT, "examples")
ZEUS_NAMES: Final = "zeus_stream/zeus/"
"""Files and classes here have the names that Zeus gave them."""

MODULE_LINES: Final = 800
FUNCTION_LINES: Final = 60
COMPLEXITY: Final = 15
FOLDER_MODULES: Final = range(3, 13)
COLLABORATORS: Final = 6
CHAIN_MODULES: Final = 20
CHAIN_STEP: Final = 5
"""A chain that is too long is excepted up to the next multiple: small changes leave the table alone."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Graph: TypeAlias = Mapping[str, frozenset[str]]


@cache
def texts() -> dict[str, str]:
    """Return the text of each module, by its path from the root."""
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for package in CHECKED
        for path in sorted((ROOT / package).rglob("*.py"))
    }


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module, by its path from the root."""
    return {name: ast.parse(text) for name, text in texts().items()}


def product() -> dict[str, ast.Module]:
    """Return the trees of the three packages, without the examples."""
    return {name: tree for name, tree in trees().items() if Path(name).parts[0] in PRODUCT}


def functions() -> Iterator[tuple[str, Function]]:
    """Yield each function with its name: ``folder/module.py:Class.function``."""

    def below(node: ast.AST, name: str, joint: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}{joint}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield inner, child
                yield from below(child, inner, ".")
            else:
                yield from below(child, name, joint)

    for module, tree in trees().items():
        yield from below(tree, module, ":")


def long_modules() -> set[str]:
    """Return modules with more than `MODULE_LINES`."""
    return {name for name, text in texts().items() if text.count("\n") > MODULE_LINES}


def long_functions() -> set[str]:
    """Return functions with more than `FUNCTION_LINES`."""
    return {name for name, found in functions() if (found.end_lineno or 0) - found.lineno >= FUNCTION_LINES}


def complex_functions() -> set[str]:
    """Return functions whose complexity is above `COMPLEXITY`, unless their body is one ``match``."""
    limit = f"lint.mccabe.max-complexity={COMPLEXITY}"
    ruff = [sys.executable, "-m", "ruff", "check", "--select", "C901", "--ignore-noqa", "--config", limit]
    done = subprocess.run(
        [*ruff, "--output-format", "json", *CHECKED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    at = {
        (str(Path(found["filename"]).relative_to(ROOT)), found["location"]["row"])
        for found in json.loads(done.stdout)
    }
    return {
        name
        for name, found in functions()
        if (name.partition(":")[0], found.lineno) in at and not _is_one_match(found)
    }


def _is_one_match(function: Function) -> bool:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return len(body) == 1 and isinstance(body[0], ast.Match)


def folder_sizes() -> Counter[str]:
    """Return the number of modules with code in each folder; ``__init__.py`` does not count."""
    return Counter(
        str(Path(name).parent)
        for name, text in texts().items()
        if not name.endswith("__init__.py") and text.strip()
    )


def full_folders() -> set[str]:
    """Return folders with too many modules."""
    return {folder for folder, modules in folder_sizes().items() if modules >= FOLDER_MODULES.stop}


def small_folders() -> set[str]:
    """Return folders of the product with too few modules."""
    return {
        folder
        for folder, modules in folder_sizes().items()
        if modules < FOLDER_MODULES.start and Path(folder).parts[0] in PRODUCT
    }


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes at the top of each module of the product, with the module's path."""
    for name, tree in product().items():
        yield from ((name, node) for node in tree.body if isinstance(node, ast.ClassDef))


def own_classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes whose names and files are ours to choose."""
    return ((name, node) for name, node in classes() if not name.startswith(ZEUS_NAMES))


def repeated_classes() -> set[str]:
    """Return names that more than one class of the product has."""
    return {name for name, times in Counter(node.name for _, node in own_classes()).items() if times > 1}


def misnamed_classes() -> set[str]:
    """Return main classes that share no word with their file's name.

    The main class is the longest public one, if it has at least 35 % of the file's lines. Words are compared
    by their first five letters.
    """
    main: dict[str, ast.ClassDef] = {}
    for name, node in own_classes():
        if not node.name.startswith("_") and _lines(node) > (_lines(main[name]) if name in main else 0):
            main[name] = node
    return {
        f"{name}:{node.name}"
        for name, node in main.items()
        if not name.endswith("__init__.py")
        and _lines(node) >= 0.35 * texts()[name].count("\n")
        and not _words(node.name) & {word[:5] for word in Path(name).stem.split("_")}
    }


def _lines(node: ast.ClassDef) -> int:
    return (node.end_lineno or 0) - node.lineno


def _words(name: str) -> set[str]:
    return {word[:5].lower() for word in re.findall(r"[A-Z][a-z0-9]*|[a-z0-9]+", name)}


def crowded_constructors() -> set[str]:
    """Return classes whose constructor takes more than `COLLABORATORS` objects of ours, or callables."""
    ours = {
        node.name for tree in product().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    return {
        f"{name}:{node.name}"
        for name, node in classes()
        if sum(bool(_named(type_) & (ours | {"Callable"})) for type_ in _constructor_types(node))
        > COLLABORATORS
    }


def _constructor_types(node: ast.ClassDef) -> Iterator[ast.expr]:
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            given = [*member.args.posonlyargs, *member.args.args, *member.args.kwonlyargs]
            yield from (argument.annotation for argument in given if argument.annotation is not None)


def _named(annotation: ast.expr) -> set[str]:
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(annotation) if isinstance(node, ast.Attribute)}


@cache
def imports() -> Graph:
    """Return the modules of the product that each imports, also within functions, by dotted names."""
    files = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): name for name in product()}

    def target(name: str) -> str:
        while name and name not in files:
            name = name.rpartition(".")[0]
        return name

    graph: dict[str, frozenset[str]] = {}
    for module, name in files.items():
        found: set[str] = set()
        for node in ast.walk(trees()[name]):
            if isinstance(node, ast.Import):
                found.update(target(alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.update(target(f"{node.module}.{alias.name}") for alias in node.names)
        graph[module] = frozenset(
            one for one in found if one not in {"", module} and texts()[files[one]].strip()
        )
    return graph


def cycles(graph: Graph) -> dict[str, str]:
    """Return a representative of the import cycle that each module is in: itself, where it is in none."""

    def reached(start: str) -> set[str]:
        seen = {start}
        todo = [start]
        while todo:
            fresh = graph[todo.pop()] - seen
            seen |= fresh
            todo += fresh
        return seen

    reach = {module: reached(module) for module in graph}
    return {module: min(other for other in reach[module] if module in reach[other]) for module in graph}


@cache
def longest_chain() -> tuple[str, ...]:
    """Return the longest chain of imports; modules that import each other count as one."""
    of = cycles(imports())
    below: dict[str, set[str]] = defaultdict(set)
    for module, others in imports().items():
        below[of[module]] |= {of[other] for other in others} - {of[module]}

    @cache
    def chain(module: str) -> tuple[str, ...]:
        return (module, *max((chain(other) for other in sorted(below[module])), key=len, default=()))

    return max((chain(module) for module in sorted(set(of.values()))), key=len)


def chain_bound() -> set[str]:
    """Return the bound that the longest chain needs, if that is above `CHAIN_MODULES`."""
    length = len(longest_chain())
    return set() if length <= CHAIN_MODULES else {str(-(-length // CHAIN_STEP) * CHAIN_STEP)}


RULES: Final = {
    "long module": (long_modules, f"has over {MODULE_LINES} lines. Split it at a seam"),
    "long function": (long_functions, f"has over {FUNCTION_LINES} lines. Split it"),
    "complex function": (complex_functions, f"has a complexity above {COMPLEXITY}. Split it"),
    "full folder": (full_folders, f"has {FOLDER_MODULES.stop} modules or more. Group them"),
    "small folder": (small_folders, f"has fewer than {FOLDER_MODULES.start} modules. Fold it in"),
    "repeated class": (repeated_classes, "is the name of two classes. Rename one"),
    "misnamed class": (misnamed_classes, "shares no word with its file's name. Rename one of them"),
    "crowded constructor": (
        crowded_constructors,
        f"takes more than {COLLABORATORS} collaborators. Group them",
    ),
    "import chain": (chain_bound, f"is how long the longest chain is; {CHAIN_MODULES} is wanted"),
}
"""What breaks each rule, and what to do about it."""


def exceptions() -> set[tuple[str, str]]:
    """Return the exceptions in the table: rule and subject."""
    lines = EXCEPTIONS.read_text(encoding="utf-8").splitlines()
    return {(rule, subject) for rule, _, subject in (line.partition(": ") for line in lines)}


def broken() -> set[tuple[str, str]]:
    """Return what breaks a rule now: rule and subject."""
    return {(rule, subject) for rule, (found, _) in RULES.items() for subject in found()}


def main() -> None:
    """Print what breaks a rule without being excepted; ``--prune`` removes needless exceptions."""
    found = broken()
    if "--prune" in sys.argv:
        kept = sorted(f"{rule}: {subject}\n" for rule, subject in exceptions() & found)
        EXCEPTIONS.write_text("".join(kept), encoding="utf-8")
    for rule, subject in sorted(found - exceptions()):
        print(f"{rule}: {subject}")
    if "--chain" in sys.argv:
        print(*longest_chain(), sep="\n")


if __name__ == "__main__":
    main()
