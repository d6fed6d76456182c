"""Jupyter and IPython: ``%load_ext zeus_stream``, then ``%%energy`` at the top of a cell.

The cell is a window of the notebook's run. Its joules stand below its output.
"""

import asyncio
import shlex
import sys
from typing import Any

from IPython.core.magic import Magics, cell_magic, magics_class, needs_local_scope

from zeus_stream.own_services import start
from zeus_stream.training.answers import Missing, WindowEnergy
from zeus_stream.training.default import default_publisher
from zeus_stream.training.publisher import Publisher

CELL = "cell"
"""Name of the window of a cell that gives none."""
ANSWER_S = 10.0


class CellFailedError(Exception):
    """A cell under ``%%energy`` failed. Its own traceback is printed already."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@magics_class
class NotebookMagics(Magics):  # type: ignore[misc, unused-ignore]
    """The magics of `zeus_stream`."""

    def __init__(self, shell: Any, publisher: Publisher | None = None) -> None:
        """``publisher``: that of the notebook, made at the first cell, if not given."""
        super().__init__(shell)
        self.shell: Any
        self._publisher = publisher

    @needs_local_scope
    @cell_magic
    def energy(self, line: str, cell: str, local_ns: dict[str, Any] | None = None) -> None:
        """Run the cell, and print its energy.

        %%energy [NAME]

        NAME is the name of the window in the archive. The answer is in the variable ``_energy``.
        """
        del local_ns  # the cell runs in the notebook's own names
        words = shlex.split(line)
        if len(words) > 1:
            raise ValueError(f"%%energy {line}: expected one name at most. Quote a name with spaces.")
        if self._awaits(cell):
            raise ValueError(
                "%%energy: could not measure a cell that awaits: IPython runs it within a loop of its own."
                " Put `async with zeus_stream.window(...)` around what it awaits."
            )
        publisher = self._publisher or default_publisher()
        with publisher.window(words[0] if words else CELL) as window:
            result = self.shell.run_cell(cell)  # it prints what the cell prints, and its traceback
        answer: WindowEnergy | Missing = window.energy(ANSWER_S)
        self.shell.user_ns["_energy"] = answer
        sys.stdout.write(f"{answer}\n")
        if not result.success:
            raise CellFailedError("the cell failed") from (result.error_before_exec or result.error_in_exec)

    def _awaits(self, cell: str) -> bool:
        """Tell whether a cell awaits in a shell whose loop runs already, as that of Jupyter does."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # none runs: IPython runs the cell in one
            return False
        python = self.shell.transform_cell(cell)
        return bool(self.shell.should_run_async(cell, transformed_cell=python))


def load_ipython_extension(shell: Any) -> None:
    """Start the services if none run, and add the magics: ``%load_ext zeus_stream``."""
    start()
    shell.register_magics(NotebookMagics(shell))
