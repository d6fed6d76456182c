"""Policies that choose batch sizes, by the names that the settings have for them. Pure."""

from collections.abc import Callable, Mapping
from math import sqrt
from random import Random
from typing import Any

from msgspec import Struct

from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Choice, Policy, Try, TryVerdict
from analyzers.batch_size.thompson import Reference
from zeus_stream.errors import SettingsError


class Default(Struct, frozen=True):
    """Always the default size: jobs that recur are only measured."""

    def choose(self, history: JobHistory, setup: str, rng: Random) -> Choice:  # noqa: ARG002  (the protocol's)
        return Choice(history.job.default, reason="the default: the policy is to try nothing else")

    def verdict(self, history: JobHistory, a_try: Try) -> TryVerdict:  # noqa: ARG002  (see above)
        return TryVerdict(go_on=True)


def estimates(policy: Policy[Any], history: JobHistory, setup: str) -> dict[int, tuple[float, float, float]]:
    """Return the believed cost of each batch size with its 95 % interval, J; nothing where there is none."""
    match policy:
        case Default():
            return {}
        case Reference():
            return {
                size: (belief.mean, belief.mean - half, belief.mean + half)
                for size, belief in policy.beliefs(history, setup).items()
                for half in [1.96 * sqrt(belief.variance)]
            }
        case _:
            from analyzers.batch_size.adaptive import beliefs  # noqa: PLC0415  (with numpy)

            return {
                each.batch_size: (each.expected_cost_j, each.low_j, each.high_j)
                for each in beliefs(history, setup)
            }


def _adaptive() -> Policy[Any]:
    from analyzers.batch_size.adaptive import Adaptive  # noqa: PLC0415  (numpy takes 0.1 s, a check needs none)

    return Adaptive()


BUILT_IN: Mapping[str, Callable[[], Policy[Any]]] = {
    "adaptive": _adaptive,  # two curves, of epochs and of cost, fitted to all sizes together
    "reference": Reference,  # Thompson sampling, each size on its own, as Zeus has it
    "default": Default,
}
"""The policies, by the names that the settings have for them."""


def parse(text: str) -> Policy[Any]:
    """Return the policy of this name. Raises SettingsError: there is none."""
    return maker_of(text)()


def maker_of(text: str) -> Callable[[], Policy[Any]]:
    """Return what makes a policy. Raises SettingsError: there is none of this name."""
    if (maker := BUILT_IN.get(text)) is None:
        raise SettingsError(
            f"policy = {text!r}: could not be understood: there is no such policy."
            f" Choose one of {', '.join(BUILT_IN)}."
        )
    return maker
