"""How often Python looks for garbage in circles, for a process that serves."""

from __future__ import annotations

import gc


def collect_seldom() -> None:
    """Make collections rare, and leave out of them all that exists now: what start-up made is never garbage.

    A request leaves no circle of any size behind; with Python's own thresholds, each look would visit thousands of
    objects that are all in use.
    """
    gc.collect()
    gc.set_threshold(20_000, 20, 50)
    gc.freeze()
