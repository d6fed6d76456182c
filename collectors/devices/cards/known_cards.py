"""Sensor cards that are known: those of the package, and those that `zeus-stream doctor --sensor` has kept.

The package brings cards of published recordings and of its simulated models, beside this file. A collector
begins with the period of the card of a GPU (`known_card`).
"""

from pathlib import Path

import msgspec

from collectors.device import Description
from collectors.devices.cards.sensor_card import SensorCard, read_card

SHIPPED = Path(__file__).parent


def keep_card(directory: Path, gpu: str, card: SensorCard) -> Path:
    """Keep the card of a GPU; return where. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{gpu}.json"
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(card)) + b"\n")
    new.rename(path)
    return path


def shipped_cards() -> dict[str, SensorCard]:
    """Return the cards that this package brings, by their short names."""
    return {path.stem: read_card(path) for path in sorted(SHIPPED.glob("*.json"))}


def known_card(directory: Path, description: Description) -> tuple[SensorCard, str] | None:
    """Return the card of a GPU and whose it is, for people. None: nothing is known of such a sensor.

    A card of another driver says nothing, and a simulated GPU is as it is described.
    """
    if description.driver.startswith("simulated"):
        return None
    try:
        kept = read_card(directory / f"{description.gpu}.json")
    except (OSError, msgspec.DecodeError):  # none, or of another version
        kept = None
    if kept is not None and (kept.name, kept.driver) == (description.name, description.driver):
        return kept, "its own"
    shipped = (card for card in shipped_cards().values() if not card.driver.startswith("simulated"))
    return next(((card, "of a recorded one") for card in shipped if card.name == description.name), None)
