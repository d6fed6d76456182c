"""Policies that choose batch sizes, by the names that the settings have for them. Pure."""

from collections.abc import Callable, Mapping
from math import sqrt
from random import Random
from typing import Any

from msgspec import Struct

from analyzers.batch_size import adaptive
from analyzers.batch_size.adaptive import Adaptive
from analyzers.batch_size.policy import Choice, Job, Policy, Try, TryVerdict
from analyzers.batch_size.thompson import Reference
from zeus_stream.errors import SettingsError


class Default(Struct, frozen=True):
    """Always the default size: jobs that recur are only measured."""

    def start(self, job: Job) -> Job:
        return job

    def began(self, state: Job, a_try: Try) -> Job:  # noqa: ARG002  (as the protocol has it)
        return state

    def ended(self, state: Job, a_try: Try) -> Job:  # noqa: ARG002
        return state

    def choose(self, state: Job, setup: str, rng: Random) -> Choice:  # noqa: ARG002
        return Choice(state.default, reason="the default: the policy is to try nothing else")

    def verdict(self, state: Job, a_try: Try) -> TryVerdict:  # noqa: ARG002
        return TryVerdict(go_on=True)


def beliefs(policy: Policy[Any], state: Any, setup: str) -> dict[int, str]:
    """Return what a policy believes of the cost of each batch size, in words; nothing where it has none."""
    match policy:
        case Adaptive():
            return {believed.batch_size: str(believed) for believed in adaptive.beliefs(state, setup)}
        case Reference():
            return {
                size: f"{belief.mean:.3g} J, give or take {sqrt(belief.variance):.3g}"
                for size, belief in policy.beliefs(state, setup).items()
            }
        case _:
            return {}


def estimates(policy: Policy[Any], state: Any, setup: str) -> dict[int, tuple[float, float, float]]:
    """Return the believed cost of each batch size with its 95 % interval, J; nothing where there is none."""
    match policy:
        case Adaptive():
            return {
                each.batch_size: (each.expected_cost_j, each.low_j, each.high_j)
                for each in adaptive.beliefs(state, setup)
            }
        case Reference():
            return {
                size: (belief.mean, belief.mean - half, belief.mean + half)
                for size, belief in policy.beliefs(state, setup).items()
                for half in [1.96 * sqrt(belief.variance)]
            }
        case _:
            return {}


class PolicyKind(Struct, frozen=True):
    """A policy, as a registry entry."""

    help: str
    make: Callable[[], Policy[Any]]


BUILT_IN: Mapping[str, PolicyKind] = {
    "adaptive": PolicyKind("Two curves, of epochs and of cost, fitted to all sizes together", Adaptive),
    "reference": PolicyKind("Thompson sampling, each size on its own, as Zeus has it", Reference),
    "default": PolicyKind("Always the default size: jobs are only measured", Default),
}
"""The policies, by the names that the settings have for them."""


def parse(text: str) -> Policy[Any]:
    """Return the policy of this name. Raises SettingsError: there is none."""
    if (kind := BUILT_IN.get(text)) is None:
        raise SettingsError(
            f"policy = {text!r}: could not be understood: there is no such policy."
            f" Choose one of {', '.join(BUILT_IN)}."
        )
    return kind.make()
