"""The functions of `zeus_stream`: those of one publisher, which the first call makes."""

import atexit
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast, overload

from zeus_stream.own_services import print_cost, start_if_asked
from zeus_stream.training.identity import named
from zeus_stream.training.publisher import Publisher, own_publisher, publishers
from zeus_stream.training.recurring import ANSWER_S, Recurring
from zeus_stream.training.steps.phase_recorder import Marking
from zeus_stream.training.steps.pipeline_recorder import Pipeline
from zeus_stream.training.steps.step_recorder import Loop
from zeus_stream.training.windows import SessionWindows, Window

T = TypeVar("T")


def default_publisher(job: str | None = None) -> Publisher:
    """Return the publisher of a script that makes none of its own. ``job`` names one that is made now."""
    if publishers.default is None:
        with publishers.lock:
            if publishers.default is None and start_if_asked():
                atexit.register(_print_cost, os.getpid())
            return own_publisher(job)
    return publishers.default


def _print_cost(pid: int) -> None:
    """Print the cost of this script's run, which was closed before: that exit function was added later."""
    run = publishers.first_run()
    if run is not None and os.getpid() == pid:
        print_cost(run)


def steps(iterable: Iterable[T]) -> Loop[T]:
    """Return ``iterable``, each turn of whose loop is a training step.

    A step begins when the loop receives a batch and ends when it asks for the next. The time that the loader
    takes belongs to no step. On a GPU the step ends when the device has done its work, without a
    synchronization. It never waits and never raises.

    Args:
        iterable: e.g. torch's ``DataLoader``. Its ``batch_size``, if it has one, is recorded.

    Returns:
        An iterable of the same items and the same length.

    Example:
        >>> for batch in zeus_stream.steps(loader):
        ...     train(batch)
    """
    return default_publisher().steps(iterable)


@overload
def epochs(count: int) -> Loop[int]: ...
@overload
def epochs(count: Iterable[T]) -> Loop[T]: ...
def epochs(count: int | Iterable[T]) -> Loop[T]:
    """Return ``range(count)``, or an iterable, each turn of whose loop is an epoch.

    Args:
        count: how many epochs, or what to loop over.

    Example:
        >>> for epoch in zeus_stream.epochs(10):
        ...     for batch in zeus_stream.steps(loader):
        ...         train(batch)
    """
    return default_publisher().epochs(cast("Iterable[T]", count))


def window(name: str) -> Window:
    """Return a window: a context that knows its energy afterwards, or a decorator of functions.

    Args:
        name: up to 200 characters. Windows of one name in all ranks of a run are added up in the archive.

    Example:
        >>> with zeus_stream.window("validation") as w:
        ...     evaluate()
        >>> w.energy().energy_j
        812.4
        >>> @zeus_stream.window("preprocess")
        ... def preprocess(): ...
    """
    return Window(named(name), _session_windows)


def _session_windows() -> SessionWindows:
    return default_publisher().session_windows


def phase(name: str) -> Marking:
    """Return a context that is a phase of the step: forward, backward, or what else a step consists of.

    It costs the training two clock reads. The archive has the seconds and joules of each phase in ``phases``,
    summed over many steps and for each epoch. The counter is coarser than the phases. On a GPU
    with a queue, a phase begins and ends when the GPU does.

    Args:
        name: up to 200 characters. Of phases within each other, the inner one counts.

    Example:
        >>> for batch in zeus_stream.steps(loader):
        ...     with zeus_stream.phase("forward"):
        ...         loss = model(batch)
        ...     with zeus_stream.phase("backward"):
        ...         loss.backward()
    """
    return default_publisher().phases.phase(name)


def metric(name: str, value: float, *, step: int | None = None, epoch: int | None = None) -> None:
    """Record a number, such as a loss, with the step and the epoch that it belongs to.

    The archive has it in ``metrics``, beside the energy spent until that step. It never raises: what is not
    a finite number is logged once, and not stored.

    Args:
        name: e.g. ``loss``; its first 200 characters are kept.
        value: what ``float()`` understands. A tensor on a GPU is waited for: give it once it is computed.
        step: number of a step, from 0. Default: the step that began last.
        epoch: number of an epoch, from 0. Default: the epoch that began last.

    Example:
        >>> zeus_stream.metric("accuracy", 0.91)
    """
    default_publisher().metric(name, value, step=step, epoch=epoch)


def ends_with(output: Any) -> None:
    """Let the step under way end when this is ready: an array of JAX, or a tree with one in it.

    JAX dispatches and returns at once; without this a step would end when Python has dispatched it. Nothing
    waits: the array is asked later whether it is ready.

    Args:
        output: what is not donated to the next step, such as the loss.

    Example:
        >>> for batch in zeus_stream.steps(loader):
        ...     state, loss = train_step(state, batch)
        ...     zeus_stream.ends_with(loss)
    """
    default_publisher().ends_with(output)


def pipeline(
    *,
    stage: int,
    stages: int,
    micro_batches: int,
    schedule: str = "1f1b",
    chunks: int = 1,
    tensor_parallel: int = 1,
) -> Pipeline:
    """Return the stage of a pipeline that this process runs: its instructions are recorded.

    Call it once in each process. With `--control` of the analyzer, clocks follow the instructions.

    Args:
        stage: of this process, from 0.
        stages: of the pipeline.
        micro_batches: of an iteration.
        schedule: its name in reports, such as ``gpipe``. The order of instructions is learned.
        chunks: model parts of each stage.
        tensor_parallel: ranks that run a stage of one replica together, with numbers in a row: their GPUs get
            the same clocks.

    Raises:
        SettingsError: the arguments make no pipeline; the sentence says what would.

    Example:
        >>> pipe = zeus_stream.pipeline(stage=rank, stages=4, micro_batches=8)
        >>> with pipe.instruction("forward", 0):
        ...     output = model(inputs)
    """
    publisher = default_publisher()

    def new() -> Pipeline:
        return Pipeline(
            publisher.session_windows.put, publisher.watch, stage=stage, stages=stages,
            micro_batches=micro_batches, schedule=schedule, chunks=chunks, tensor_parallel=tensor_parallel,
        )  # fmt: skip

    return publisher.follow(Pipeline, new)


def recurring(
    name: str,
    *,
    batch_sizes: Sequence[int],
    default: int,
    target: float,
    metric: str,
    lower_is_better: bool = False,
    max_epochs: int = 100,
    eta: float = 0.5,
    beta: float = 2.0,
    window: int = 0,
    timeout_s: float = ANSWER_S,
    agree: Callable[[Any], Any] | None = None,
) -> Recurring:
    """Return one training of the job that recurs under this name, with the batch size to train with.

    Args:
        name: the job; its trainings learn from each other.
        batch_sizes: those that may be tried; they may differ from training to training.
        default: the one of them that is used where nothing is known.
        target: of the metric; a training that reaches it has converged.
        metric: its name, e.g. ``accuracy``.
        lower_is_better: True for a loss.
        max_epochs: epochs of one try at most.
        eta: weight of energy in the cost: 1, energy only; 0, time only.
        beta: a try may cost at most this many times the least that a converged one has cost.
        window: number of the latest tries of a size that count; 0: all.
        timeout_s: seconds to wait at most for the analyzer's batch size.
        agree: a function that returns, in every rank, what the first one gave it. Without it a training of
            several ranks is never stopped early: its ranks would not stop together.

    Raises:
        SettingsError: the arguments make no sense; the sentence says what would.

    Example:
        >>> job = zeus_stream.recurring("nightly", batch_sizes=[16, 32], default=32, target=0.9, metric="f1")
        >>> loader = make_loader(batch_size=job.batch_size)
        >>> for epoch in job.epochs():
        ...     train(loader)
        ...     job.report(evaluate())
    """
    return default_publisher(name).recurring(
        name, batch_sizes=batch_sizes, default=default, target=target, metric=metric,
        lower_is_better=lower_is_better, max_epochs=max_epochs, eta=eta, beta=beta, window=window,
        timeout_s=timeout_s, agree=agree,
    )  # fmt: skip
