"""What a long-lived process does with its memory once it has started."""

import gc
from typing import Any, Final

THRESHOLDS: Final = (20_000, 10, 20)
"""A page of a large cluster makes some ten thousand values that are in no cycle."""


def settle(**_: Any) -> None:
    """Take what was loaded at the start out of every later search for cycles.

    Modules, models and templates stay to the end: searching them again and again only makes some
    of the requests slow, and it unshares the pages of memory that forked children share.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
