"""What every exchange needs of the process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, MutableSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferencemesh.core.events import Event
from inferencemesh.runtime.drain import Drains
from inferencemesh.runtime.gate import Gate
from inferencemesh.runtime.held import HeldBudget
from inferencemesh.runtime.upstream import Upstream

if TYPE_CHECKING:
    from inferencemesh.runtime.exchange import Exchange

# Of all plain answers that are held at one time, until they are whole or until their callers have taken them.
HELD_BYTES = 64 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Services:
    """What every exchange needs of the process."""

    gate: Gate
    drains: Drains
    loop: asyncio.AbstractEventLoop
    emit: Callable[[Event], None]
    bug: Callable[
        [str, BaseException], None
    ]  # an exception that should not have been, for the operator's log
    rng: random.Random
    upstreams: dict[str, Upstream]
    live: MutableSet[Exchange]
    held_budget: HeldBudget = field(default_factory=lambda: HeldBudget(HELD_BYTES))
    expose_backend: bool = False
    overload_status: int = 503
