"""Rules that scale a learning rate with the batch size, with Zeus's names. Pure."""

import math
from dataclasses import dataclass


@dataclass
class SquareRootScaler:
    """The rule for adaptive optimizers: by the square root of the batch size. ``lr`` was right for ``bs``."""

    bs: int
    lr: float

    def compute_lr(self, new_bs: int) -> float:
        """Return the learning rate for another batch size."""
        return self.lr * math.sqrt(new_bs / self.bs)


@dataclass
class LinearScaler:
    """The rule for SGD: in proportion to the batch size. ``lr`` was right for ``bs``."""

    bs: int
    lr: float

    def compute_lr(self, new_bs: int) -> float:
        """Return the learning rate for another batch size."""
        return self.lr * new_bs / self.bs
