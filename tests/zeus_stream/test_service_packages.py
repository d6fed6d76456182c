"""The command that messages name to install zeus-stream: from where this installation came."""

from pathlib import Path

from zeus_stream import service_packages
from zeus_stream.service_packages import install_command

ROOT = Path(service_packages.__file__).parents[1]


def test_a_checkout_is_installed_from_itself() -> None:
    assert install_command("services", "python3") == f"python3 -m pip install '{ROOT}[services]'"


def test_no_message_names_an_index_that_may_not_have_it() -> None:
    for path in (ROOT / "zeus_stream").rglob("*.py"):
        assert "pip install 'zeus-stream" not in path.read_text(encoding="utf-8"), path
