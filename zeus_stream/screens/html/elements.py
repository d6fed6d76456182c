"""HTML and SVG elements as text. Pure.

Every text is escaped unless it is `Markup`, so a run that is called ``<script>`` stays a name.
"""

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is HTML already. Only functions of this project make it, from parts that were escaped."""

    __slots__ = ()


Child = str | Markup | None | Iterable["Child"]
VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
"""Elements without an end tag."""


def element(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Return an element. A child or attribute that is None is left out, as is an attribute that is False.

    ``class_`` is ``class``, an underscore is a dash, and an attribute that is True has no value.
    """
    words = "".join(
        f' {_name(key)}="{escape(_value(value))}"' if value is not True else f" {_name(key)}"
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{words}>")
    return Markup(f"<{name}{words}>{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Return the children one after the other."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return Markup(escape(children))
    return Markup("".join(map(join, children)))


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
