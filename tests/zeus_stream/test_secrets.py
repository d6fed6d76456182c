"""Passwords in the addresses of brokers and databases: no other user and no reader of an archive sees one."""

import pytest

from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.errors import SettingsError, UnreachableError, without_passwords
from zeus_stream.settings import load, make, read

CANARY = "canary-f8a1"
SECRETS = {
    "broker": f"nats://site:{CANARY}@b1:4222,nats://{CANARY}@b2:4222",
    "database": f"host=db password='{CANARY} {CANARY}' dbname=zeus",
}
ENVIRON = {f"ZEUS_STREAM_{name.upper()}": value for name, value in SECRETS.items()}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (SECRETS["broker"], "nats://***@b1:4222,nats://***@b2:4222"),
        (SECRETS["database"], "host=db password=*** dbname=zeus"),
        (f"postgresql://u:{CANARY}@@{CANARY}@db/zeus?password={CANARY}&x=1", "postgresql://***@db/zeus?password=***&x=1"),
        ("tcp://host:4321 is not reached by a@b", "tcp://host:4321 is not reached by a@b"),
    ],
)  # fmt: skip
def test_a_text_is_shown_without_passwords(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    assert str(UnreachableError(text)) == shown


@pytest.mark.parametrize("name", SECRETS)
def test_a_password_on_the_command_line_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="could not take a password from the command line") as refused:
        load({name: SECRETS[name]}, {})
    assert CANARY not in str(refused.value)
    assert read({"broker": "nats://b1:4222"}, {}) == {"broker": "nats://b1:4222"}


def test_the_settings_of_a_site_do_not_show_their_passwords() -> None:
    site = make(SiteSettings, read({}, ENVIRON))
    assert (site.broker, site.database) == tuple(SECRETS.values())
    assert CANARY not in repr(site)
