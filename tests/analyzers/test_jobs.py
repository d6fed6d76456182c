from dataclasses import replace

import pytest

from analyzers.interpreter import Interpreter
from analyzers.jobs import Known
from analyzers.recurring import Choice, Job, Try, Verdict
from analyzers.rows import GiveAnswer, JobRow, TryRow, WindowRow
from tests.analyzers.test_interpreter import QUICK
from tests.simulation.world import BEGIN_NS, Training, World
from zeus_stream.messages import Advice, AskTry, Metric, TryBegan, TryEnded, TryWanted

PLAN = replace(QUICK, selector=None)
TRAINING = Training("imagenet", 0.02, 60, epoch_steps=20)


def wanted(t_ns: int, attempt: int = 0, **changed) -> TryWanted:
    made = TryWanted(t_ns, attempt, "nightly", (16, 32, 64), 32, 0.9, "accuracy", False, 10, 0.5, 2.0, 0)
    return replace(made, **changed)

w = World("simulated:v100x1", TRAINING, PLAN)
h = w.hosts[0]
w.at(BEGIN_NS+1, lambda: h.publish(wanted(h.now())))
w.at(BEGIN_NS+100_000_000, lambda: h.publish(TryBegan(h.now(), 0, 32)))
w.at(BEGIN_NS+100_000_000, lambda: w.interpreter.ask("h0", AskTry("q", h.session, 0, 0)))
w.at(BEGIN_NS+100_000_000, lambda: w.interpreter.ask("h0", AskTry("q2", h.session, 0, 2)))
w.run()
for o in w.outputs:
    if isinstance(o, (TryRow, JobRow, GiveAnswer)): print(w.now_ns, o)
    if isinstance(o, WindowRow) and o.kind=="epoch": print(o.index, o.energy_j, o.duration_s)
