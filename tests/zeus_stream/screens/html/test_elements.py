"""Elements: whatever a text holds, it stays text."""

import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import csv_text, facts, plain, table
from zeus_stream.screens.svg.frontier_chart import HEIGHT, WIDTH, ChartedChoice, frontier_chart
from zeus_stream.screens.svg.run_charts import epochs_chart
from zeus_stream.views.quantity import within_half


class Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attributes))

    def handle_data(self, data: str) -> None:
        self.text += data


hostile = st.text(st.sampled_from("<>&\"'/=ab \n;-!"), max_size=30)


@given(text=hostile, value=hostile)
def test_text_and_attributes_come_back_as_they_were(text: str, value: str) -> None:
    parser = Texts()
    parser.feed(element("p", text, title=value))
    parser.close()
    assert parser.tags == [("p", [("title", value)])]
    assert parser.text == text


def test_words_of_ours_are_explained_where_they_stand() -> None:
    causes = table([{"cause": "data wait", "lag": 3}], {"cause": ("cause", plain), "lag": ("lag", plain)})
    assert '<td title="Energy while the loop waits for its next batch' in causes
    assert re.search('<th scope="col"[^>]* title="Age of the oldest frame', causes)
    assert '<dt title="Joules saved so far' in facts([("saved", "491 J", "")])


def test_only_markup_is_html() -> None:
    assert element("p", "<b>", element("i", "x"), [None, "&"]) == "<p>&lt;b&gt;<i>x</i>&amp;</p>"
    assert element("a", "x", class_="n", aria_label="l", open=True, hidden=None) == (
        '<a class="n" aria-label="l" open>x</a>'
    )
    assert isinstance(element("p"), Markup)


finite = st.floats(0.001, 1e7)


@given(st.lists(st.tuples(finite, finite, st.none() | finite, st.none() | finite), min_size=2, max_size=12))
def test_any_trials_give_a_frontier_inside_its_frame(
    points: list[tuple[float, float, float | None, float | None]],
) -> None:
    limits = [
        ChartedChoice(name=f"{n} W", time=within_half(x, "ms", dx), energy=within_half(y, "J/step", dy))
        for n, (x, y, dx, dy) in enumerate(points)
    ]
    parser = Texts()
    parser.feed(frontier_chart(limits, ("ms", "J"), "words"))
    dots = [dict(attributes) for tag, attributes in parser.tags if tag == "circle"]
    assert len(dots) == len(points)
    assert all(0 <= float(dot["cx"] or -1) <= WIDTH and 0 <= float(dot["cy"] or -1) <= HEIGHT for dot in dots)


@given(st.lists(finite, min_size=1, max_size=60))
def test_any_epochs_give_a_chart(energies: list[float]) -> None:
    epochs = [
        {"epoch": n, "energy_j": e, "energy_p2_5_j": None, "energy_p97_5_j": None, "power_limit_w": None}
        for n, e in enumerate(energies)
    ]
    assert epochs_chart(epochs, "words").count("<circle") == len(energies)


def test_csv_has_empty_cells_for_what_is_missing_and_no_formula() -> None:
    rows = [{"a": None, "b": 1.5, "c": "=1+1", "d": 'say "x", y'}]
    assert csv_text(rows) == 'a,b,c,d\n,1.5,\'=1+1,"say ""x"", y"'
