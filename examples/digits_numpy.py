"""Train a small neural network on generated digits, with only NumPy.

The script generates the data: ten digits as seven-segment images, each with a random position,
stroke, brightness and noise. It trains a network with one hidden layer by SGD with momentum, and
reports every step to Tessera. After the notice to leave, the job saves its state. The next attempt
continues from this state with bit-identical results.

    python3 digits_numpy.py                 # about half a minute
    python3 digits_numpy.py --steps 50 --batch 64
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the import of NumPy: the machine is shared

import numpy as np

try:
    from tessera import train
except ImportError:  # outside a job, without the package
    train = None

SIDE = 28
#            top, upper left, upper right, middle, lower left, lower right, bottom
SEGMENTS = ("1110111", "0010010", "1011101", "1011011", "0111010")
SEGMENTS += ("1101011", "1101111", "1010010", "1111111", "1111011")


def draw(digit, rng):
    """One picture of a digit as SIDE x SIDE brightnesses."""
    picture = np.zeros((SIDE, SIDE), dtype=np.float32)
    height, width = rng.integers(14, 20), rng.integers(7, 12)
    top, left = rng.integers(2, SIDE - height - 3), rng.integers(2, SIDE - width - 3)
    middle, stroke = top + height // 2, rng.integers(1, 4)
    bottom, right = top + height, left + width
    across = {0: top, 3: middle, 6: bottom}
    down = {1: (top, middle, left), 2: (top, middle, right)}
    down |= {4: (middle, bottom, left), 5: (middle, bottom, right)}
    for segment, is_lit in enumerate(SEGMENTS[digit]):
        if is_lit == "0":
            continue
        if segment in across:
            picture[across[segment] : across[segment] + stroke, left : right + stroke] = 1
        else:
            begin, end, column = down[segment]
            picture[begin : end + stroke, column : column + stroke] = 1
    return picture * rng.uniform(0.5, 1.0) + rng.normal(0, 0.2, picture.shape)


def make_data(count, rng):
    """Pictures (count, SIDE * SIDE) and their digits."""
    digits = rng.integers(0, 10, count)
    pictures = np.stack([draw(digit, rng).ravel() for digit in digits])
    return pictures.astype(np.float32), digits


def draw_batch(pictures, digits, size, rng):
    """A batch of images with a random shift and noise, so that none occurs twice."""
    chosen = rng.integers(0, len(digits), size)
    batch = pictures[chosen].reshape(size, SIDE, SIDE)
    batch = np.roll(batch, tuple(rng.integers(-3, 4, 2)), axis=(1, 2)).reshape(size, -1)
    return batch + rng.standard_normal(batch.shape, dtype=np.float32) * 0.2, digits[chosen]


class Network:
    """Pictures -> hidden layer (ReLU) -> ten scores, trained by SGD with momentum."""

    def __init__(self, hidden, rng):
        inputs = SIDE * SIDE
        self.weights = {
            "w1": (rng.normal(0, (2 / inputs) ** 0.5, (inputs, hidden))).astype(np.float32),
            "b1": np.zeros(hidden, dtype=np.float32),
            "w2": (rng.normal(0, (2 / hidden) ** 0.5, (hidden, 10))).astype(np.float32),
            "b2": np.zeros(10, dtype=np.float32),
        }
        self.speed = {name: np.zeros_like(value) for name, value in self.weights.items()}

    def scores(self, pictures):
        """Hidden activations and scores."""
        hidden = np.maximum(pictures @ self.weights["w1"] + self.weights["b1"], 0)
        return hidden, hidden @ self.weights["w2"] + self.weights["b2"]

    def step(self, pictures, digits, rate, momentum=0.9):
        """One step of SGD; returns the mean cross-entropy before it."""
        hidden, scores = self.scores(pictures)
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(digits))
        loss = float(-np.log(chances[rows, digits] + 1e-9).mean())
        chances[rows, digits] -= 1
        error = chances / len(digits)
        back = (error @ self.weights["w2"].T) * (hidden > 0)
        gradients = {"w1": pictures.T @ back, "b1": back.sum(axis=0)}
        gradients |= {"w2": hidden.T @ error, "b2": error.sum(axis=0)}
        for name, gradient in gradients.items():
            self.speed[name] = momentum * self.speed[name] - rate * gradient
            self.weights[name] += self.speed[name]
        return loss

    def accuracy(self, pictures, digits):
        """Share of images that are classified correctly."""
        return float((self.scores(pictures)[1].argmax(axis=1) == digits).mean())


def keep(network, rng, step):
    """Save the state that the next step needs."""
    state = {"weights": network.weights, "speed": network.speed, "chance": rng.bit_generator.state}
    train.checkpoint({"step": step, **state}, step=step)


def go_on(network, rng):
    """Load the saved state; return the next step, 0 without a saved state."""
    state = train.resume() if train is not None else None
    if state is None:
        return 0
    network.weights, network.speed = state["weights"], state["speed"]
    rng.bit_generator.state = state["chance"]
    return state["step"]


def main():
    """Train, report every step, and print the final accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=500, help="steps from save to save")
    options = parser.parse_args()

    rng = np.random.default_rng(options.seed)
    pictures, digits = make_data(8192, rng)
    unseen = make_data(1024, rng)
    network = Network(options.hidden, rng)
    for step in range(go_on(network, rng), options.steps):
        began = time.perf_counter()
        loss = network.step(*draw_batch(pictures, digits, options.batch, rng), options.rate)
        seconds = time.perf_counter() - began
        print(f"step {step} loss {loss:.4f} ({seconds * 1000:.1f} ms)", flush=True)
        if train is not None:
            train.report(step=step, samples=options.batch, step_seconds=seconds, loss=loss)
            asked = train.should_yield()
            if asked or (step + 1) % options.every == 0:
                keep(network, rng, step + 1)
            if asked:
                print(f"asked to leave ({train.notice()}): saved step {step + 1}", flush=True)
                return
    print(f"accuracy on unseen digits: {network.accuracy(*unseen):.3f}", flush=True)


if __name__ == "__main__":
    main()
