"""Train a small network on handwritten digits. Every step, epoch and validation is measured.

    zeus-stream run --device simulated:v100x1 -- python examples/train_digits.py

The network is real: two layers in NumPy, on the digits of scikit-learn. It is too small for a GPU, so each
step also gives the GPU the work of a larger network. The power and speed of a simulated GPU follow its power
limit as was measured with ShuffleNetV2 on CIFAR-100. A real GPU multiplies matrices in PyTorch.
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import zeus_stream

BATCH = 32
TRAINED_ON = 1500
"""Of 1797 images; the others validate."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Network:
    """64 pixels, ``hidden`` rectified units, 10 digits."""

    def __init__(self, hidden: int, rng: np.random.Generator) -> None:
        self.w1, self.b1 = rng.normal(0, 0.18, (64, hidden)), np.zeros(hidden)
        self.w2, self.b2 = rng.normal(0, 0.18, (hidden, 10)), np.zeros(10)

    def predict(self, pixels: Floats) -> tuple[Floats, Floats]:
        """Return the hidden units and the probability of each digit, a row an image."""
        hidden = np.maximum(pixels @ self.w1 + self.b1, 0)
        odds = np.exp(hidden @ self.w2 + self.b2)
        return hidden, odds / odds.sum(axis=1, keepdims=True)

    def train(self, pixels: Floats, digits: Ints, rate: float = 0.2) -> float:
        """Take one step down the gradient of the cross-entropy, and return it as it was before."""
        hidden, chances = self.predict(pixels)
        error = (chances - np.eye(10)[digits]) / len(digits)
        behind = (error @ self.w2.T) * (hidden > 0)
        self.w2 -= rate * hidden.T @ error
        self.b2 -= rate * error.sum(axis=0)
        self.w1 -= rate * pixels.T @ behind
        self.b1 -= rate * behind.sum(axis=0)
        return float(-np.log(chances[np.arange(len(digits)), digits]).mean())

    def accuracy(self, pixels: Floats, digits: Ints) -> float:
        return float((self.predict(pixels)[1].argmax(axis=1) == digits).mean())


def minibatches(count: int, rng: np.random.Generator) -> list[Ints]:
    """Return 0 to ``count`` shuffled, in whole batches."""
    order = rng.permutation(count)
    return np.split(order[: count - count % BATCH], count // BATCH)


def gpu_work(kind: str, opened: ExitStack) -> Callable[[float], object]:
    """Return a function that gives the GPU so many seconds of work, counted at its highest limit."""
    if kind == "simulated":
        from zeus_stream.simulated_gpu.accelerator import attach  # noqa: PLC0415  (only where it is asked for)

        return opened.enter_context(attach("cifar100")).run
    if kind == "torch":
        return matrix_products()
    return lambda _work_s: None


def matrix_products() -> Callable[[float], object]:
    import torch  # type: ignore[import-not-found]  # noqa: PLC0415  (optional, and only on a real GPU)

    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(matrix)

    def multiply(times: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            torch.mm(matrix, matrix, out=product)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    multiply(100)  # to warm up
    per_second = 500 / multiply(500)
    return lambda work_s: multiply(max(1, round(work_s * per_second)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--gpu", choices=["simulated", "torch", "none"], default="simulated", help="who works"
    )
    parser.add_argument("--work-ms", type=float, default=25, help="of the GPU per step, at its highest limit")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    rng = np.random.default_rng(options.seed)
    digits = load_digits()
    order = rng.permutation(len(digits.target))
    pixels, labels = digits.data[order] / 16, digits.target[order]
    test_pixels, test_labels = pixels[TRAINED_ON:], labels[TRAINED_ON:]
    network = Network(64, rng)

    with ExitStack() as opened:
        work = gpu_work(options.gpu, opened)
        for epoch in zeus_stream.epochs(options.epochs):
            losses = []
            for batch in zeus_stream.steps(minibatches(TRAINED_ON, rng)):  # the one line
                losses.append(network.train(pixels[batch], labels[batch]))
                work(options.work_ms / 1000)
            with zeus_stream.window("validation"):
                accuracy = network.accuracy(test_pixels, test_labels)
                work(5 * options.work_ms / 1000)
            loss = sum(losses) / len(losses)
            zeus_stream.metric("loss", loss)
            zeus_stream.metric("accuracy", accuracy)
            print(f"epoch {epoch + 1:3}  loss {loss:.4f}  accuracy {accuracy:.1%}", flush=True)


if __name__ == "__main__":
    main()
