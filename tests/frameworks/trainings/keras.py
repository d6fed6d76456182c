"""Keras 3's `Model.fit`, tiny and on the CPU."""

from typing import Any

import keras
import numpy as np

from tests.frameworks.trainings.common import Broken, publisher, publisher_alone, say, slow
from zeus_stream import Publisher
from zeus_stream.integrations.keras import KerasCallback

X = np.random.default_rng(2).normal(size=(40, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class At(keras.callbacks.Callback):
    """Does something at the end of a batch."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__()
        self.at = at
        self.what = what

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.at and self.what == "stop":
            self.model.stop_training = True
        elif batch == self.at:
            raise Broken


class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        slow()


def model(accumulated: int | None = None, execution: int = 1) -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulated)
    made.compile(optimizer=optimizer, loss="mse", steps_per_execution=execution)
    return made


def run(
    pub: Publisher | None, made: keras.Model, *callbacks: keras.callbacks.Callback, **arguments: Any
) -> dict[str, Any]:
    ours = [] if pub is None else [KerasCallback(pub)]
    settings = {"epochs": 2, "batch_size": 4, "verbose": 0, "validation_data": (X, Y)} | arguments
    history = made.fit(X, Y, callbacks=[*ours, *callbacks], **settings).history
    losses = {name: values for name, values in history.items() if "loss" in name}
    return {"history": losses, "weights": [weight.tolist() for weight in made.get_weights()]}


results: dict[str, Any] = {"without": run(None, model(3))}
with publisher("everything") as pub:
    results["with"] = run(pub, model(3))
with publisher_alone("alone") as pub:
    results["alone"] = run(pub, model(3))
with publisher("execution") as pub:  # torch executes no more than one
    run(pub, model(execution=1 if keras.config.backend() == "torch" else 5))
with publisher("scaled") as pub:
    scaled = model()
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    scaled.compile(optimizer=keras.optimizers.LossScaleOptimizer(inner), loss="mse")
    run(pub, scaled)
with publisher("stopped") as pub:
    run(pub, model(), At(4, "stop"))
with publisher("broken") as pub:
    failing = model(2)
    try:
        run(pub, failing, At(4, "break"))
    except Broken:
        run(pub, failing)
with publisher("resumed") as pub:
    first = model()
    run(None, first, epochs=1)
    run(pub, first, epochs=3, initial_epoch=1)
with publisher("evaluated") as pub:
    model().evaluate(X, Y, callbacks=[KerasCallback(pub)], verbose=0)
with publisher("logged") as pub:
    logged = model()
    history = logged.fit(X, Y, 2, 4, 0, [KerasCallback(pub), Slow()]).history
    energies_j, powers_w = history["energy_per_step_j"], history["average_power_w"]
    results["logs"] = [
        {"energy_per_step_j": energy_j, "average_power_w": power_w}
        for energy_j, power_w in zip(energies_j, powers_w, strict=True)
    ]
say(**results)
