from typing import get_args

import pytest

from analyzers.power_limit.search.search_progress import settled
from zeus_stream.protocol.snapshots import Phase, SearchNow


@pytest.mark.parametrize("phase", get_args(Phase))
def test_a_search_that_waits_or_measures_is_urgent_beside_any_other(phase: Phase) -> None:
    searches = [SearchNow(phase="chosen"), SearchNow(phase=phase)]
    assert settled(searches) == (phase not in {"waiting", "measuring"})
