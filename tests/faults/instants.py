"""Instants by chance: when something happens to a process."""

import random
import threading


def wait_for_instant(rng: random.Random, least: float, most: float) -> None:
    """Let a time drawn by ``rng`` go by: the instant is the experiment, nothing is awaited."""
    threading.Event().wait(rng.uniform(least, most))
