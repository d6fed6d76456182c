"""Announcements of hosts: those that repeat what is known change nothing."""

import pytest
from msgspec.structs import replace

from analyzers.shards.roll_call import ABSENT_NS, RollCall
from zeus_stream.broker import requests
from zeus_stream.broker.exchange import Delivered, Exchange
from zeus_stream.broker.requests import Announced, AnnouncedRun
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.protocol import codec
from zeus_stream.protocol.notes import Notes

SITE = "site"
RUN = AnnouncedRun(session="s", run="r", job="resnet", first_offset=20)


def announced(host: str, log_id: str = "log") -> Announced:
    return Announced(host=host, log_id=log_id, incarnation="i", standing=codec.encode(Notes(())), runs=())


def message(content: Announced, subject: str = "_INBOX.a.1") -> Delivered:
    return Delivered(subject, "", codec.encode(content))


@pytest.fixture
def roll() -> RollCall:
    return RollCall(Exchange(SiteSettings(broker="nats://192.0.2.1", site=SITE), "test"), SITE)


def test_a_reply_that_repeats_an_announcement_is_no_change(roll: RollCall) -> None:
    north = announced("north")
    roll.take(message(north), 0)
    roll.take(message(announced("south")), 0)
    seen = roll.changed
    roll.take(message(north), 1)
    roll.take(message(north, requests.announcement_subject(SITE, "north")), 2)
    assert (roll.changed, list(roll.changed_since(seen))) == (seen, [])
    busy = replace(north, runs=(RUN,))
    roll.take(message(busy), 3)
    assert list(roll.changed_since(seen)) == ["north"]
    assert list(roll.changed_since(0)) == ["north", "south"]
    assert roll.hosts["north"] == busy
    roll.take(message(north), 4)
    assert roll.hosts["north"] == north


def test_a_host_that_repeats_its_announcement_is_present(roll: RollCall) -> None:
    roll.take(message(announced("north")), 0)
    roll.take(message(announced("south")), 0)
    roll.take(message(announced("north")), ABSENT_NS)
    roll.forget_absent(ABSENT_NS + 1)
    assert list(roll.hosts) == ["north"]


def test_a_host_that_comes_back_with_the_same_announcement_is_a_change(roll: RollCall) -> None:
    roll.take(message(announced("north")), 0)
    seen = roll.changed
    roll.forget_absent(ABSENT_NS + 1)
    assert list(roll.changed_since(seen)) == []
    roll.take(message(announced("north")), ABSENT_NS + 2)
    assert list(roll.changed_since(seen)) == ["north"]
    assert "north" in roll.hosts


def test_a_known_announcement_is_refused_on_the_subject_of_another_host(roll: RollCall) -> None:
    roll.take(message(announced("north")), 0)
    roll.take(message(announced("north"), requests.announcement_subject(SITE, "south")), ABSENT_NS)
    assert roll.malformed == 1
    roll.forget_absent(ABSENT_NS + 1)
    assert not roll.hosts


def test_two_collectors_of_one_name_are_named_though_each_repeats_itself(
    roll: RollCall, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        roll.take(message(announced("north", "first")), 0)
        roll.take(message(announced("north", "second")), 0)
    assert "two collectors announce themselves under this name" in caplog.text
    assert roll.changed == 6
