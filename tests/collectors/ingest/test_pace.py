from collectors.ingest.pace import GATHER_NS, GatherPace


def test_what_comes_in_waits_but_while_somebody_waits_for_it() -> None:
    pace = GatherPace()
    assert pace.gather_ns(5) == GATHER_NS
    pace.hurry(100)
    pace.hurry(50)
    assert pace.gather_ns(99) == 0
    assert pace.gather_ns(100) == GATHER_NS
