"""What a refused caller may expect (contract A10): at which pace its kind of waiter is granted, and its ticket.

A model has one of these, and one more for each class whose waiters do not go at the model's own pace: a class with a
line of its own, with a limit on its slots, or with a rank where classes are strict.
"""

from __future__ import annotations

import random

from inferencemesh.core.estimate import Pace, Tickets


class Prospects:
    """See the module. `paces` are those that its waiters count in: the model's, and where there is one their own."""

    __slots__ = ("paces", "tickets")

    def __init__(self, rng: random.Random, *paces: Pace) -> None:
        self.paces = paces
        self.tickets = Tickets(rng)
