"""What reached a log is archived exactly once, whoever is killed: real processes, SIGKILL."""

from pathlib import Path
from random import Random

from collectors.publish_server import UNHEARD
from tests.processes.pipeline import pipeline


def test_through_kills_of_all_in_turn_everything_logged_is_archived_once(zeus_dir: Path) -> None:
    with pipeline(zeus_dir, publishers=1) as setup:
        killed = setup.kill_in_turn(6, Random(0))
        account = setup.finish()
    assert min(killed.values()) >= 2
    assert (account.lost, account.twice, account.unmeasured) == (0, 0, 0)
    others = [gap for gap in account.gaps if not gap.endswith(UNHEARD) and " collector: " not in gap]
    assert not others, "while no collector ran is named, a trainer that was killed then too, and nothing else"
    assert account.acknowledged > 100
    assert account.archived >= account.acknowledged
