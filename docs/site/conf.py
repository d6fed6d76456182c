"""The site of documentation: ``make docs`` builds it with Sphinx from the Markdown files of the repository.

Nothing on its pages comes from elsewhere: no font, no script. The search works in a folder of files as well.
"""

import re
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).parents[2]
NAVIGATION = {
    "To learn": ("docs/tutorial/*",),
    "To do": ("docs/how-to/*",),
    "Coming from": ("docs/coming-from/*",),
    "To look up": ("docs/reference/*", "CHANGELOG", "SECURITY"),
    "To understand": ("docs/explanation/*", "docs/architecture", "docs/figures", "benchmarks/README"),
    "To contribute": ("CONTRIBUTING", "docs/decisions/*", "docs/measurements/*"),
}

project = "zeus-stream"
author = "The zeus-stream authors"
release = re.findall(r'VERSION = "(.*)"', (ROOT / "zeus_stream" / "package_version.py").read_text())[0]
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "benchmarks/README.md"]
exclude_patterns = ["docs/site/**"]
html_theme = "furo"
html_title = f"zeus-stream {release}"
html_copy_source = False
html_math_renderer = "mathml"
html_show_sphinx = False
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]  # output of a terminal beside its command


def _add_navigation(_app: Sphinx, name: str, source: list[str]) -> None:
    """Give the first page the tree of all pages, and each link to a folder the page of that folder."""
    source[0] = re.sub(r"\]\(((?:\.\./|docs/)*[\w-]+)/\)", r"](\1/README.md)", source[0])
    if name == root_doc:
        for title, pages in NAVIGATION.items():
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {title}\n\n{listed}\n```\n"


def _add_index(app: Sphinx, wrong: Exception | None) -> None:
    """Have the first page open with the folder."""
    if wrong is None and app.builder.name == "html":
        out = Path(app.outdir)
        (out / "index.html").write_bytes((out / f"{root_doc}.html").read_bytes())


def _visit_math(writer: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers draw without a script."""
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register what this file adds."""
    app.add_html_math_renderer("mathml", (_visit_math, None), (_visit_math, None))
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _add_index)
