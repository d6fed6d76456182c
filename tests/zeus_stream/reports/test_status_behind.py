"""The status screen says by how much an analyzer is behind."""

import io

from zeus_stream.protocol.queries import Status
from zeus_stream.reports.status_screen import ServiceLine, print_view, view


def test_the_status_says_by_how_much_the_analyzer_is_behind() -> None:
    rows = (("analyzer", "selector", "energy"), ("analyzer", "behind by", "12.4 s"))
    shown = view({"analyzer": Status(rows)}, {}, {})
    assert shown.services == (ServiceLine(name="analyzer", state="answers, selector energy", lag="12.4 s"),)
    out = io.StringIO()
    print_view(shown, out)
    assert "12.4 s" in out.getvalue()
