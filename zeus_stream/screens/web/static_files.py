"""The files of the pages: read once, named by their content, compressed."""

import gzip
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from msgspec import Struct

TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FOLDERS = (("zeus_stream.screens.web", "static"), ("zeus_stream.screens.web", "static/vendor"))
STYLE = ("zeus_stream.screens.html", "style.css")
"""Of the pages and of the report."""


class StaticFile(Struct, frozen=True, kw_only=True):
    """A file, ready to be sent."""

    name: str
    """With its digest, so that it never changes."""
    media_type: str
    content: bytes
    compressed: bytes


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Return the files by their plain name."""
    found = [files(STYLE[0]).joinpath(STYLE[1])]
    found += [each for package, folder in FOLDERS for each in files(package).joinpath(folder).iterdir()]
    loaded = {each.name: _load(each) for each in found if each.is_file() and _suffix(each.name) in TYPES}
    return dict(sorted(loaded.items()))


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]


def _load(file: Traversable) -> StaticFile:
    content = file.read_bytes()
    stem, suffix = file.name.rpartition(".")[0], _suffix(file.name)
    return StaticFile(
        name=f"{stem}.{sha256(content).hexdigest()[:10]}{suffix}", media_type=TYPES[suffix], content=content,
        compressed=gzip.compress(content, mtime=0),
    )  # fmt: skip


def address(name: str) -> str:
    """Return the address of a file, relative to the root of the site."""
    return f"static/{static_files()[name].name}"
