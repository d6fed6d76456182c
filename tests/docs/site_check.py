"""Check a built site: each link leads to a page and a heading of it, and nothing is fetched."""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

FETCHED = re.compile(r"""<(?:script|img|link|iframe|source)[^>]*?(?:src|href)=["']([^"']+)""")
LINKS = re.compile(r"""<a[^>]*?href=["']([^"']+)""")
IDS = re.compile(r"""(?:id|name)=["']([^"']+)""")
REMOTE = re.compile(r"(?:https?:)?//")
STYLES = re.compile(r"""(?:@import|url\()\s*["']?((?:https?:)?//[^"')]+)""")


def wrong_of(site: Path) -> list[str]:
    """Return what is wrong with the pages of a site, one sentence each."""
    pages = {page.resolve(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    ids = {page: set(IDS.findall(text)) for page, text in pages.items()}
    wrong = []
    for page, text in pages.items():
        name = page.relative_to(site.resolve())
        fetched = (address for address in FETCHED.findall(text) if REMOTE.match(address))
        wrong += [f"{name}: fetches {address}" for address in fetched]
        for link in LINKS.findall(text):
            if REMOTE.match(link) or link.startswith(("mailto:", "javascript:")):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                wrong.append(f"{name}: {link} leads nowhere")
            elif anchor and target in ids and anchor not in ids[target]:
                wrong.append(f"{name}: {link} leads to no heading")
    for style in site.rglob("*.css"):
        wrong += [f"{style.name}: fetches {found}" for found in STYLES.findall(style.read_text("utf-8"))]
    return sorted(set(wrong))


if __name__ == "__main__":
    found = wrong_of(Path(sys.argv[1]))
    sys.stdout.write("".join(f"{sentence}\n" for sentence in found))
    sys.exit(bool(found))
