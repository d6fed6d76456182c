"""The frame of every page: head, navigation, main part. Pure."""

from collections.abc import Sequence

from zeus_stream.screens.html.elements import Child, Markup, element
from zeus_stream.screens.web.static_files import address

NAVIGATION = (("", "Overview"), ("jobs", "Jobs"), ("waste", "Waste"), ("sql", "SQL"))
"""Address and name of the pages in the navigation."""
END = Markup("</main></body></html>\n")


def head(
    title: str, here: str, up: str = "", scripts: Sequence[str] = (), styles: Sequence[str] = ("web.css",)
) -> Markup:
    """Return a page to the begin of its main part; `END` follows it.

    ``here``: the address in the navigation that it belongs to. ``up``: to the root of the site, as ``../``.
    """
    links = [element("link", rel="stylesheet", href=up + address(name)) for name in ("style.css", *styles)]
    parts = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} - zeus-stream"),
        element("link", rel="icon", href=up + address("favicon.svg"), type="image/svg+xml"), links,
        [script(up, name) for name in scripts],
    ]  # fmt: skip
    names = [
        element("a", name, href=up + path or "./", aria_current="page" if path == here else None)
        for path, name in NAVIGATION
    ]
    brand = element("a", "zeus-stream", href=up or "./", class_="brand")
    state = element("span", id="state", class_="state", role="status")
    bar = element("header", element("nav", brand, names, state, aria_label="Pages"), class_="site")
    skip = element("a", "Skip to the content", href="#main", class_="skip")
    begin = f'<!doctype html>\n<html lang="en">{element("head", *parts)}<body>'
    return Markup(f'{begin}{skip}{bar}<main id="main" tabindex="-1">')


def script(up: str, name: str, *, at_once: bool = False) -> Markup:
    """Return a script. A module runs when the page is whole, or ``at_once``; others where they stand."""
    kind = None if name.endswith(".iife.min.js") else "module"
    return element("script", src=up + address(name), type=kind, async_=at_once)


def heading(title: str, *under: Child) -> Markup:
    """Return the title of a page with a line below it."""
    return element("div", element("h1", title), element("p", *under, class_="under") if under else None)


def error(sentence: str) -> Markup:
    """Return a sentence that says what is wrong."""
    return element("section", element("p", sentence, class_="error", role="alert"), class_="panel")


def notice(sentence: str) -> str:
    """Return a page that has only a sentence. It needs no other file: those need the token."""
    parts = [element("meta", charset="utf-8"), element("title", "zeus-stream")]
    body = element("body", element("main", element("h1", "zeus-stream"), element("p", sentence)))
    return f'<!doctype html>\n<html lang="en">{element("head", *parts)}{body}</html>\n'
