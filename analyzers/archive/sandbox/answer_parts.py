"""Parts of an answer in the pipe from the process of a query to the one that asked."""

import struct

from analyzers.archive.sandbox.question import Question

HEAD = struct.Struct("<cI")
"""Kind and length of a part of the answer."""
DATA, DONE, REFUSED = b"D", b"E", b"R"


def out_of_memory(question: Question) -> str:
    """Return the refusal of a query that took more memory than it may."""
    return (
        f"query: could not be answered: Out of Memory: it needs more than memory_mb = {question.memory_mb}."
        " Ask for less, or raise memory_mb of the analyzer."
    )
