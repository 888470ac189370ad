"""Detection of English words on a page in another language.

Rules exclude names of people and objects, identifiers, commands, and text that users wrote.
"""

import re
from functools import lru_cache
from html.parser import HTMLParser
from typing import Final

from scheduling.compat.formats import TITLES

READ_ATTRIBUTES: Final = (
    "aria-label",
    "placeholder",
    "title",
    "alt",
    *(f"data-confirm{part}" for part in ("", "-body", "-verb", "-safe")),
)
VERBATIM: Final = frozenset(("code", "kbd", "pre", "script", "style", "textarea", "datalist"))
VOID: Final = frozenset(("input", "meta", "link", "br", "hr", "img"))
PROPER: Final = frozenset(
    ("val/loss", "val", "loss", "loguniform", "uniform", "integer", "ASHA")
) | frozenset(
    [
        "Tessera",
        "API",
        "REST",
        "CLI",
        "YAML",
        "JSON",
        "CSV",
        "GPU",
        "CPU",
        "UTC",
        "SSH",
        "SHA",
        "HMAC",
        "TLS",
        "HTTP",
        *TITLES.values(),
        "Webhook",
        "Webhooks",
        "Python",
        "PyTorch",
        "Git",
        "git",
        "Docker",
        "English",
        "sshd",
        "zip",
        "Authorization",
        "Token",
        "Shift",
        "Enter",
        "Esc",
        "Ctrl",
    ]
)
SPELLED: Final = frozenset(
    [
        "NAME",
        "value",
        "team",
        "rack",
        "pool",
        "Rack",
        "zone",
        "label",
        "failed",
        "preempted",
        "idle",
        "notify",
        "worker",
        "pcie",
        "numa",
        "nvlink",
        "RANK",
        "LOCAL",
        "WORLD",
        "SIZE",
        "torchrun",
        "tests",
        "auto",
        "isolated",
        "shared",
        "checkpoints",
        "tenant",
        "checkpoint_dir",
        "IPC",
        "InfiniBand",
        "RDMA",
        "node",
        "image",
        "private",
        "host",
        "shm",
        "none",
        "name",
        "mount",
    ]
)
"""Words of specifications and labels, which are not translated."""

IDENTIFIER: Final = re.compile(
    r"https?://\S*|[a-z]+\.$|/\w[\w/]*|[A-Za-z]*\d\w*|\w+(?:[-_.:@=]\w+)+\.?"
)
WORD: Final = re.compile(r"[A-Za-z]{3,}|\b(?:an|as|at|by|if|in|is|it|no|of|on|or|to)\b")


class Texts(HTMLParser):
    """Parser of the texts of a page, including tooltips and labels."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[tuple[str, bool]] = []
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [given[name] or "" for name in READ_ATTRIBUTES if given.get(name)]
        if tag not in VOID:
            self._open.append((tag, tag in VERBATIM or given.get("translate") == "no"))

    def handle_endtag(self, tag: str) -> None:
        if any(tag == name for name, _ in self._open):
            while self._open.pop()[0] != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not any(verbatim for _, verbatim in self._open):
            self.found.append(" ".join(data.split()))


def english_in(html: str, names: frozenset[str]) -> list[str]:
    """Return texts with a word that is not a name, an identifier or a unit."""
    texts = Texts()
    texts.feed(html)
    any_name = _any_name(names)
    return sorted(
        {
            text
            for text in texts.found
            if not names.issuperset(WORD.findall(IDENTIFIER.sub("", any_name.sub(_bare, text))))
        }
    )


@lru_cache(maxsize=8)
def _any_name(names: frozenset[str]) -> re.Pattern[str]:
    """A name, or its beginning with an ellipsis, as the labels of drawings have it."""
    cut = {f"{name[:end]}…" for name in names for end in range(1, len(name))}
    return re.compile("|".join(map(re.escape, sorted(names | cut, key=len, reverse=True))))


def _bare(found: re.Match[str]) -> str:
    """Remove names of several words or symbols; a single word remains for the comparison."""
    return found[0] if WORD.fullmatch(found[0]) else ""
