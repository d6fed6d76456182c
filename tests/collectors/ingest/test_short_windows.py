from collectors.ingest.pace import COUNT_NS, FEW, ShortWindows


def test_windows_are_short_until_few_events_have_come_for_a_while_and_again_once_they_come_often() -> None:
    short = ShortWindows()
    short.count({"steps": 40, "long": 2}, COUNT_NS)
    assert "steps" in short
    assert "long" in short, "it is young"
    short.count({"steps": 400, "long": 2 + FEW - 1}, 2 * COUNT_NS)
    assert "steps" in short
    assert "long" not in short
    assert "new" in short
    short.count({"steps": 401, "long": 100}, 2 * COUNT_NS + 1)
    assert "long" not in short, "too soon to count again"
    short.count({"steps": 401, "long": 100}, 3 * COUNT_NS)
    assert "long" in short
    assert "steps" not in short, "an evaluation"
