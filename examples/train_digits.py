"""Train a small network on handwritten digits, and know what every step, epoch and validation costs.

    zeus-stream run --device simulated:v100x1 -- python examples/train_digits.py

The network is real: two layers in NumPy on scikit-learn's digits. It is far too small to occupy a GPU, so
each step also gives the GPU the work that a step of ResNet-50 would be (`gpu_work`). On a simulated GPU that
work draws power and slows under a power limit as published measurements on a V100 or A40 did; on a real
one it is matrix products in PyTorch, where PyTorch is installed.
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import zeus_stream

Array = NDArray[np.float64]
BATCH = 32


class Network:
    """64 pixels, ``hidden`` rectified units, 10 digits; cross-entropy, momentum."""

    def __init__(self, hidden: int, rng: np.random.Generator) -> None:
        sizes = (64, hidden, 10)
        pairs = list(zip(sizes, sizes[1:], strict=False))
        self.weights = [rng.normal(0, np.sqrt(2 / fan_in), (fan_in, fan_out)) for fan_in, fan_out in pairs]
        self.biases = [np.zeros(fan_out) for _, fan_out in pairs]
        self._speed = [np.zeros_like(parameter) for parameter in (*self.weights, *self.biases)]

    def predict(self, pixels: Array) -> tuple[Array, Array]:
        """Return the hidden units, shape (n, hidden), and the probability of each digit, shape (n, 10)."""
        hidden = np.maximum(pixels @ self.weights[0] + self.biases[0], 0)
        scores = hidden @ self.weights[1] + self.biases[1]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, odds / odds.sum(axis=1, keepdims=True)

    def train(self, pixels: Array, digits: NDArray[np.int64], rate: float = 0.02) -> float:
        """Take one step down the gradient; return the loss before it."""
        hidden, chances = self.predict(pixels)
        right = np.arange(len(digits)), digits
        loss = -np.log(chances[right] + 1e-12).mean()
        error = chances
        error[right] -= 1
        error /= len(digits)
        behind = (error @ self.weights[1].T) * (hidden > 0)
        gradients = (pixels.T @ behind, hidden.T @ error, behind.sum(axis=0), error.sum(axis=0))
        parameters = (*self.weights, *self.biases)
        for parameter, speed, gradient in zip(parameters, self._speed, gradients, strict=True):
            speed *= 0.9
            speed -= rate * gradient
            parameter += speed
        return float(loss)

    def accuracy(self, pixels: Array, digits: NDArray[np.int64]) -> float:
        return float((self.predict(pixels)[1].argmax(axis=1) == digits).mean())


def minibatches(count: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return the indices 0 to ``count``, shuffled, in batches of BATCH; what is left over is dropped."""
    order = rng.permutation(count)
    return [order[start : start + BATCH] for start in range(0, count - BATCH + 1, BATCH)]


def gpu_work(kind: str, opened: ExitStack) -> Callable[[float], None]:
    """Return a function that keeps the GPU busy with so many seconds of work at its highest limit."""
    if kind == "simulated":
        from zeus_stream.simulated import attach

        return opened.enter_context(attach("imagenet")).run
    if kind == "torch":
        return torch_work()
    return lambda _work_s: None


def torch_work() -> Callable[[float], None]:
    """Return matrix products on the first CUDA device, as many as took the time when they were counted."""
    import torch

    left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(left)

    def products(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            torch.mm(left, left, out=out)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    products(20)
    per_second = 200 / products(200)
    return lambda work_s: products(max(1, round(work_s * per_second))) and None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--gpu", choices=["simulated", "torch", "none"], default="simulated", help="who works")
    parser.add_argument("--work-ms", type=float, default=25.0, help="GPU work of a step at the highest limit")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    rng = np.random.default_rng(options.seed)
    digits = load_digits()
    order = rng.permutation(len(digits.target))
    pixels, labels = digits.data[order] / 16, digits.target[order]
    train_x, train_y, test_x, test_y = pixels[:1500], labels[:1500], pixels[1500:], labels[1500:]
    network = Network(options.hidden, rng)

    with ExitStack() as opened:
        work = gpu_work(options.gpu, opened)
        for epoch in zeus_stream.epochs(options.epochs):
            losses = []
            for batch in zeus_stream.steps(minibatches(len(train_x), rng)):  # the one line
                losses.append(network.train(train_x[batch], train_y[batch]))
                work(options.work_ms / 1000)
            with zeus_stream.window("validation"):
                accuracy = network.accuracy(test_x, test_y)
                work(10 * options.work_ms / 1000)
            zeus_stream.metric("loss", float(np.mean(losses)))
            zeus_stream.metric("accuracy", accuracy)
            print(f"epoch {epoch + 1:3}  loss {np.mean(losses):.4f}  accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
