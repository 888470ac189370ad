"""The tokens keep the contrast that the design promises, in both themes (WCAG 2.2)."""

import itertools
import re
from pathlib import Path

import pytest

TOKENS = (Path(__file__).resolve().parents[3] / "static/tokens.css").read_text()
FOUND = re.findall(r"--([\w-]+):\s*light-dark\((#[0-9A-F]{6}), (#[0-9A-F]{6})\)", TOKENS)
THEMES = {
    name: {token: pair[place] for token, *pair in FOUND}
    for place, name in enumerate(("light", "dark"))
}
GROUNDS = ("bg", "surface", "sunken", "hover")
STATES = ("ok", "busy", "warn", "bad")
TEXT = [
    *itertools.product(("text", "text-2", "text-3", "accent", *STATES), GROUNDS),
    *((state, f"{state}-wash") for state in STATES),
    *(("text", f"{wash}-wash") for wash in (*STATES, "accent")),
    ("on-accent", "accent"),
    ("accent", "accent-wash"),
    *(("tile-ink", f"c{n}-fill") for n in range(1, 9)),
]
EDGES = [
    ("line-strong", "surface"),
    ("line-strong", "bg"),
    *((f"c{n}", "surface") for n in range(1, 9)),
]


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(theme: str, one: str, other: str) -> float:
    low, high = sorted(luminance(THEMES[theme][token]) for token in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_text_can_be_read_on_every_ground(theme: str) -> None:
    weak = [pair for pair in TEXT if contrast(theme, *pair) < 4.5]

    assert weak == []


@pytest.mark.parametrize("theme", THEMES)
def test_edges_can_be_seen(theme: str) -> None:
    weak = [pair for pair in EDGES if contrast(theme, *pair) < 3.0]

    assert weak == []
