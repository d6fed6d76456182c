"""Loops of plain torch, and of Accelerate, tiny and on the CPU."""

from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from tests.frameworks.trainings.common import Broken, publisher, publisher_alone, say, slow
from zeus_stream import Publisher, auto

BATCHES = 12


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    x = torch.randn(BATCHES * 4, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(TensorDataset(x, x.sum(1)), 4)


def plain(accumulated: int = 1, fails: int = -1) -> dict[str, Any]:
    model, optimizer, loader = parts()
    losses = []
    for number, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x)[:, 0], y)
        loss.backward()
        losses.append(loss.item())
        if number == fails:
            raise Broken
        if (number + 1) % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
    return {"losses": losses, "weights": model.weight.tolist()}


def accelerated() -> dict[str, Any]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model, optimizer, loader = accelerator.prepare(*parts())
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x)[:, 0], y)
            losses.append(loss.item())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return {"losses": losses, "weights": accelerator.unwrap_model(model).weight.tolist()}


def pair() -> None:
    """Two optimizers take turns, as in a GAN."""
    _, one, _ = parts()
    _, two, _ = parts()
    for _ in range(5):
        one.step()
        two.step()


def compiled() -> None:
    model, optimizer, _ = parts()

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    for _ in range(5):
        model(torch.ones(4)).sum().backward()
        step()


def measured(pub: Publisher) -> None:
    energy = auto(pub)
    assert auto(pub) is energy


results: dict[str, Any] = {"without": plain(3), "accelerated without": accelerated()}
with publisher("accumulated") as pub:
    measured(pub)
    results["with"] = plain(3)
results["closed"] = plain(3)
with publisher_alone("alone") as pub:
    measured(pub)
    results["alone"] = plain(3)
with publisher("accelerated") as pub:
    measured(pub)
    results["accelerated"] = accelerated()
with publisher("pair") as pub:
    measured(pub)
    pair()
with publisher("successors") as pub:  # the optimizer of a phase is gone in the next one
    measured(pub)
    plain()
    plain()
with publisher("compiled") as pub:
    measured(pub)
    compiled()
with publisher("broken") as pub:
    measured(pub)
    try:
        plain(fails=4)
    except Broken:
        plain()
with publisher("logged") as pub:
    energy = auto(pub)
    model, optimizer, loader = parts()
    results["logs"] = []
    for _ in range(3):
        for _ in loader:
            slow()
            optimizer.step()
            results["logs"].append(energy.log(tokens=7))
        with energy.pause("evaluation"):
            slow()
            slow()
say(**results)
