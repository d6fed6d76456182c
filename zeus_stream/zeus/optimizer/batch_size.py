"""`BatchSizeOptimizer`: the batch size of a recurring job, with Zeus's names and no server of its own.

get_batch_size, on_train_begin, on_evaluate -> `zeus_stream.recurring` -> the analyzer's choice
"""

from collections.abc import Iterator
from dataclasses import dataclass

from zeus_stream.training.recurring import Recurring
from zeus_stream.zeus.callback import Callback
from zeus_stream.zeus.exception import ZeusBaseError
from zeus_stream.zeus.monitor.energy import ZeusMonitor


class ZeusBSOTrainFailError(ZeusBaseError):
    """A training that ended short of its target with this batch size."""


class ZeusBSOOperationOrderError(ZeusBaseError):
    """Methods that were called in another order than `get_batch_size`, `on_train_begin`, `on_evaluate`."""


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job that recurs: Zeus's fields. Those of its bandit and its pruning are accepted and not used.

    Attributes:
        job_id: its name. None: ``job_id_prefix``.
        batch_sizes: to choose from.
        default_batch_size: the one to begin with.
        eta_knob: weight of energy in the cost, 0 to 1.
        beta_knob: a try may cost at most this many times the least cost so far. None: the default.
        target_metric: the value to reach.
        higher_is_better_metric: whether the metric grows.
        max_epochs: after which a training has missed its target.
        window_size: number of the latest tries of a size that count; 0: all.
    """

    job_id_prefix: str
    batch_sizes: list[int]
    default_batch_size: int
    job_id: str | None = None
    eta_knob: float = 0.5
    beta_knob: float | None = 2.0
    target_metric: float = 0.5
    higher_is_better_metric: bool = True
    max_epochs: int = 100
    num_pruning_rounds: int = 2
    window_size: int = 0
    mab_prior_mean: float = 0.0
    mab_prior_precision: float = 0.0
    mab_num_explorations: int = 2
    mab_seed: int | None = None


class BatchSizeOptimizer(Callback):
    """One training of a job that recurs.

    Args:
        monitor: its GPUs are those of the training.
        server_url: accepted and not used: the analyzer chooses.
        job: what recurs.
        rank: accepted and not used: ranks agree on what the first one is given.

    Raises:
        SettingsError: the job is not one that can be asked for.
    """

    def __init__(self, monitor: ZeusMonitor, server_url: str, job: JobSpec, rank: int = 0) -> None:
        self.monitor = monitor
        self.server_url = server_url
        self.job = job
        self.rank = rank
        self.training_finished = False
        self._recurring: Recurring = monitor.publisher.recurring(
            job.job_id or job.job_id_prefix,
            batch_sizes=job.batch_sizes,
            default=job.default_batch_size,
            target=job.target_metric,
            metric="metric",
            lower_is_better=not job.higher_is_better_metric,
            max_epochs=job.max_epochs,
            eta=job.eta_knob,
            beta=2.0 if job.beta_knob is None else job.beta_knob,
            window=job.window_size,
        )
        self._epochs: Iterator[int] | None = None

    def get_batch_size(self) -> int:
        """Return the batch size to train with. Waits for the answer two seconds at most."""
        return self._recurring.batch_size

    def on_train_begin(self) -> None:
        """Begin the first epoch."""
        self._epochs = iter(self._recurring.epochs())
        next(self._epochs)

    def on_evaluate(self, metric: float) -> None:
        """Report the metric after an epoch, and begin the next one.

        Args:
            metric: compared with the target.

        Raises:
            ZeusBSOOperationOrderError: the training has not begun.
            ZeusBSOTrainFailError: the training is over and missed its target. Start it again.
        """
        if self._epochs is None:
            raise ZeusBSOOperationOrderError("on_evaluate: could not report: call on_train_begin first.")
        if self.training_finished:
            return
        self._recurring.report(metric)
        if next(self._epochs, None) is not None:
            return
        self.training_finished = True
        if not self._recurring.converged:
            raise ZeusBSOTrainFailError(
                f"Training failed: {self._recurring.reason} Start the training again."
            )
