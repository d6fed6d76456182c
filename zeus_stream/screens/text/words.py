"""Words of reports that are ours alone, each with its meaning. Pure."""

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    "steps": "Energy between the begin and the end of each turn of the loop in zeus_stream.steps.",
    "the rest": "Energy of the run outside of its steps, by cause, and what profiling took.",
    "not attributed": "Energy of the run that no step, named window or epoch explains.",
    "data wait": "Energy while the loop waits for its next batch, within an epoch.",
    "stragglers": "Energy while ranks wait for the slowest rank.",
    "outside epochs": "Energy before the first epoch, between epochs and after the last one.",
    "redone steps": "Steps that were trained again after a restart from a checkpoint.",
    "profiling": "Energy that steps took at measured limits beyond what they would take at the chosen one.",
    "zeus-stream itself": "Processor time and energy of the collector and the analyzer.",
    "chosen": "The power limit that the selector takes, of those that were measured or estimated.",
    "found": "The power limit that was in force before the run.",
    "confirmed": "The chosen limit was measured again, after the search.",
    "saves": "Energy and time of a step at the chosen limit, compared with the limit found.",
    "saved": "Joules saved so far: the same, for all steps at the chosen limit.",
    "95 %": "The interval that holds the true value in 95 of 100 cases.",
    "true energy": "The energy with what is not known of the gain of the GPU's sensor.",
    "confirms": "True for a trial that measures the chosen limit again, after the search.",
    "behind": "The analyzer was late: limits came later, and energies of steps are less exact.",
    "lag": "Age of the oldest frame that the analyzer has not interpreted.",
    "gaps": "Data that is known to be missing, each kind with its number and its reason.",
    "Missing from the archive": "Data that was lost before it was stored, each kind with its reason.",
}


def explained(text: str) -> list[tuple[str, str]]:
    """Return the words of a report that are ours, with their meaning, in the order of `WORDS`."""
    return [(word, meaning) for word, meaning in WORDS.items() if word in text]
