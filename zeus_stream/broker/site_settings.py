"""Settings of a site: its broker, its database, and what a process shows them of itself."""

import logging
import ssl
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Struct

from zeus_stream.broker.batches import PARTS
from zeus_stream.errors import SettingsError, explaining, without_passwords
from zeus_stream.settings import SettingHelp
from zeus_stream.transport.endpoints import is_loopback

_log = logging.getLogger(__name__)


@cache
def warn_in_clear(server: str) -> None:
    """Warn once of a server to which messages go without TLS."""
    _log.warning(
        "broker: messages to %s cross the network in clear, unless the server asks for TLS. Write tls:// in"
        " its address, or name the certificates of its authority with broker_ca.",
        server,
    )


class SiteSettings(Struct, frozen=True, kw_only=True):
    """The settings of the processes of one site."""

    # fmt: off
    broker: Annotated[str | None, SettingHelp(
        "NATS servers that take the log of each host, such as nats://b1:4222,nats://b2:4222.  [none]",
        "hosts", secret=True
    )] = None
    site: Annotated[str, SettingHelp(
        "Name of the site at the broker. Two sites need two names.", "hosts"
    )] = "site"
    broker_credentials: Annotated[str | None, SettingHelp(
        "File with the credential of this process at the broker.  [none]", "hosts"
    )] = None
    broker_ca: Annotated[Path | None, SettingHelp(
        "Certificates of the authority that signs those of the broker.  [those of the system]", "hosts"
    )] = None
    broker_certificate: Annotated[Path | None, SettingHelp(
        "Certificate of this process, for a broker that asks for one.  [none]", "hosts"
    )] = None
    broker_key: Annotated[Path | None, SettingHelp(
        "Key of the certificate of this process.  [in the same file]", "hosts"
    )] = None
    broker_mb: Annotated[int, SettingHelp(
        "Most that the broker keeps of a part of the site, MB. A full part makes its hosts wait.",
        "resources", 16, 10_000_000
    )] = 8192
    broker_parts: Annotated[int, SettingHelp(
        "Parts of the site at the broker. Give archivers more first, then one collector after another.",
        "hosts", 1, 1024
    )] = PARTS
    broker_hours: Annotated[float, SettingHelp(
        "Age at which the broker lets go of frames that no archiver has taken, h.",
        "resources", 0.01, 10_000.0
    )] = 72.0
    shards: Annotated[int, SettingHelp(
        "Analyzers of a site share its jobs, in so many parts. 0: one analyzer decides on all jobs.",
        "hosts", 0, 1024
    )] = 0
    database: Annotated[str | None, SettingHelp(
        "PostgreSQL of the site, such as 'host=db dbname=zeus': leases, and the catalog of its lake.",
        "hosts", secret=True
    )] = None
    broker_replicas: Annotated[int, SettingHelp(
        "Copies that the broker keeps of each message.", "hosts", 1, 5
    )] = 1
    # fmt: on

    def __repr__(self) -> str:
        return f"SiteSettings({self.shown})"

    @property
    def shown(self) -> str:
        """Return the servers of the broker for people: without user and password."""
        servers = (self.broker or "none").split(",")
        return ",".join(
            without_passwords(s if "://" in s or "@" not in s else f"nats://{s}") for s in servers
        )

    def in_clear(self) -> list[str]:
        """Return the servers on other hosts whose address asks for no TLS."""
        if self.broker is None or self.broker_ca is not None or self.broker_certificate is not None:
            return []
        named = [each if "://" in each else f"nats://{each}" for each in self.broker.split(",")]
        hosts = [(each, urlsplit(each)) for each in named]
        return [
            server
            for server, each in hosts
            if each.scheme not in ("tls", "wss") and not is_loopback(each.hostname or "")
        ]

    def dsn(self, who: str) -> str:
        """Return the DSN of the database. Raises SettingsError: none is named. ``who`` needs it."""
        if self.database is None:
            raise SettingsError(
                f"{who}: could not start: no database is named. Name a PostgreSQL with --database."
            )
        return self.database

    def connection(self, who: str) -> dict[str, Any]:
        """Return servers, credentials and certificates as NATS takes them. Raises SettingsError."""
        if self.broker is None:
            raise SettingsError(
                f"{who}: could not start: no broker is named. Name its servers with --broker."
            )
        for server in self.in_clear():
            warn_in_clear(without_passwords(server))
        options: dict[str, Any] = {"servers": self.broker.split(",")}
        for name in ("broker_credentials", "broker_ca", "broker_certificate", "broker_key"):
            file = getattr(self, name)
            if file is not None and not Path(file).exists():
                raise SettingsError(
                    f"broker: could not use {name} = {file}: there is no such file. Correct {name}."
                )
        if self.broker_credentials is not None:
            options["user_credentials"] = self.broker_credentials
        if self.broker_ca is None and self.broker_certificate is None:
            return options
        cure = "Correct broker_ca, broker_certificate or broker_key."
        with explaining(SettingsError, "broker: could not use its certificates", cure):
            tls = ssl.create_default_context(cafile=self.broker_ca)
            if self.broker_certificate is not None:
                tls.load_cert_chain(self.broker_certificate, self.broker_key)
        return options | {"tls": tls}
