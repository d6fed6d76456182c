"""Where the broker of a site is, and how a process shows it who it is."""

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from zeus_stream.errors import SettingsError
from zeus_stream.settings import Settings


class BrokerAddress(Struct, frozen=True, kw_only=True):
    """The servers of a site's broker, and the credentials of this process there."""

    servers: str
    """URLs, separated by commas. They may name a user and a password."""
    site: str
    credentials: str | None = None
    """A file of NATS."""
    ca: Path | None = None
    """Certificates of the authority that has signed those of the servers. None: those of the system."""
    certificate: Path | None = None
    """Of this process, for servers that ask for one."""
    key: Path | None = None
    """Of that certificate."""

    @classmethod
    def of(cls, settings: Settings, who: str) -> "BrokerAddress":
        """Return the address that settings name.

        Raises:
            SettingsError: they name no broker, or a certificate that cannot be read. ``who`` needs it.
        """
        if settings.broker is None:
            raise SettingsError(
                f"{who}: could not start: no broker is named. Name its servers with --broker."
            )
        address = cls(
            servers=settings.broker,
            site=settings.site,
            credentials=settings.broker_credentials,
            ca=settings.broker_ca,
            certificate=settings.broker_certificate,
            key=settings.broker_key,
        )
        address.options()
        return address

    def __repr__(self) -> str:
        return f"BrokerAddress({self.shown})"

    @property
    def shown(self) -> str:
        """Return the servers for people: without user and password."""
        return ",".join(without_login(server) for server in self.servers.split(","))

    def options(self) -> dict[str, Any]:
        """Return what the client of NATS takes beside the servers. Raises SettingsError."""
        options: dict[str, Any] = {"servers": self.servers.split(",")}
        if self.credentials is not None:
            if not Path(self.credentials).exists():
                raise SettingsError(
                    f"broker: could not use the credential {self.credentials}: there is no such file. Correct"
                    " broker_credentials."
                )
            options["user_credentials"] = self.credentials
        if self.ca is None and self.certificate is None:
            return options
        try:
            tls = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                tls.load_cert_chain(self.certificate, self.key)
        except OSError as wrong:
            raise SettingsError(
                f"broker: could not use its certificates: {wrong}. Correct broker_ca, broker_certificate or"
                " broker_key."
            ) from wrong
        return options | {"tls": tls}


def without_login(server: str) -> str:
    """Return the URL of a server without user, password and token."""
    if "@" not in server:
        return server
    parts = urlsplit(server)
    if not parts.netloc:
        return server.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
