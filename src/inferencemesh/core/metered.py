"""Charges whose amount only the end of a request tells: slot-seconds (the default) and tokens.

Half of what all but few requests cost (C/2) is charged at dispatch: the counters of two tenants then stay as
close as they can, `|F_i - F_j| <= e_max/w_i + max over n_i + n_j <= N of (n_i (C-e)/w_i + n_j e/w_j)` (bound
B2), least at e = C/2. A request that outruns its charge pays another as large; what was too much is given
back at the end. The minimum charge keeps requests that fail at once from being free.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from inferencemesh.core.costs import Costs, Mean
from inferencemesh.core.request import LeaseState

Whose = tuple[str, str]
"""Model and tenant: what one tenant's requests cost says nothing of another's. Were all charged by the longest, those
who ask for little would be given back most of it again and again, and each time come before everybody else (D5)."""
REMEMBERED = 16_384
"""Models and tenants whose costs are remembered; the first ones are forgotten first."""

if TYPE_CHECKING:
    from inferencemesh.core.request import Lease, Request

LEAST_S = 0.25
"""Minimum charge in slot-seconds, per slot of width."""
PRIOR_S = LEAST_S
"""What a request is believed to last before any has ended: little. Who lasts longer pays instalments; were it much,
virtual time would begin so far ahead that refunds put the first before all who come later (D4, D5)."""

FALL = 0.5
"""How fast the cap may fall, of what one slot uses meanwhile. What is charged ahead, half of the cap, so falls at a
quarter of the pace at which it is used: three quarters of what a tenant uses are seen in its service all the while."""

LEAST_TOKENS = 16.0
"""Minimum charge in weighted tokens."""
PRIOR_TOKENS = LEAST_TOKENS
"""What a request is believed to generate before any has ended: little, as in slot-seconds."""
TYPICAL_TOKENS = 500.0
"""What it is believed to read then, at most twice as much; and what could have been generated in a slot kept idle."""
BYTES_PER_TOKEN = 4.0
"""A prompt's size is only guessed from its bytes until the backend has told it."""
LOOK_S = 1.0
"""Seconds after which the tokens of a running request are looked at first; then at twice its age each time."""


class SlotSeconds:
    """Unit `slot_seconds`: what is scarce at a gateway, slots over the time that they are held, draining included.

    `limit_s` is the longest that a request may run. `fixed_s` puts a constant in place of what is learned, for
    tests that must know the charge.
    """

    lifts = True
    corrects = True
    grows = True

    def __init__(self, limit_s: float = 600.0, *, fixed_s: float | None = None) -> None:
        self._limit_s = limit_s
        self._fixed_s = fixed_s
        self._learned: dict[Whose, Costs] = {}
        self._of_all: dict[str, Mean] = {}  # by model

    def cap_s(self, model: str, tenant: str) -> float:
        """C: the seconds that all but few of the tenant's requests to `model` stay below."""
        if self._fixed_s is not None:
            return self._fixed_s
        costs = self._learned.get((model, tenant))
        return min(self._limit_s, costs.cap if costs is not None else 2.0 * PRIOR_S)

    def at_dispatch(self, request: Request) -> float:
        """Return C/2 for each slot of width."""
        return max(LEAST_S, 0.5 * self.cap_s(request.model, request.tenant)) * request.width

    def at_end(self, lease: Lease, charged: float, now: float) -> float:
        """Return the difference to what was held, at least a quarter of a second."""
        held_s = now - lease.granted_at
        if self._fixed_s is None:
            request = lease.request
            costs = _learned(self._learned, request, LEAST_S / 16, PRIOR_S)
            costs.add(held_s, FALL * costs.since_last(now))
            _mean(self._of_all, request.model, PRIOR_S).add(held_s)
        return max(LEAST_S, held_s) * lease.width - charged

    def due_at(self, lease: Lease, charged: float, now: float) -> float:
        """Return when `charged` has been used up."""
        return lease.granted_at + charged / lease.width

    def instalment(self, lease: Lease, charged: float, now: float) -> float:
        """Return C/2 for each slot of width, once more and often enough for the time that has passed.

        Not ever more: what is left of the last one is given back at the end, all at once (see `Costs.add`).
        """
        step = self.at_dispatch(lease.request)
        behind = (now - lease.granted_at) * lease.width - charged
        total = charged + step * max(0, ceil(behind / step))
        while lease.granted_at + total / lease.width < now:  # as `due_at` reckons, to the last bit
            total += step
        return total - charged

    def undone(self, lease: Lease, charged: float, *, full: bool) -> float:
        """Return all of it where the backend had no room. A failed try has held its slots, and those are paid for."""
        return charged if full and lease.state is LeaseState.FREED else 0.0

    def idle(self, slot_seconds: float, service_s: float) -> float:
        """Return the slot-seconds themselves."""
        return slot_seconds

    def relative(self, request: Request) -> float:
        """Return how long those of its tenant last beside all of its model."""
        return _relative(self._learned, self._of_all, request)


class Tokens:
    """Unit `tokens`: `input_weight` per prompt token and `output_weight` per generated one.

    What the backend reports counts; without a report, a prompt token for four bytes of the request's body, and an
    output token for each event with content.
    """

    lifts = True
    corrects = True
    grows = True

    def __init__(self, input_weight: float = 1.0, output_weight: float = 2.0) -> None:
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._inputs: dict[Whose, Costs] = {}
        self._outputs: dict[Whose, Costs] = {}
        self._of_all: dict[str, Mean] = {}  # output by model
        self._held_s = 1.0  # the time that requests were held for,
        self._generated = 1.0  # and what they have generated, fading

    def at_dispatch(self, request: Request) -> float:
        """Return the prompt's guessed tokens and half of the output that all but few requests stay below."""
        guessed = min(request.size_bytes / BYTES_PER_TOKEN, _cap(self._inputs, request, TYPICAL_TOKENS))
        output = 0.5 * _cap(self._outputs, request, PRIOR_TOKENS)
        return max(LEAST_TOKENS, self._input_weight * guessed + self._output_weight * output)

    def at_end(self, lease: Lease, charged: float, now: float) -> float:
        """Return the difference to what was read and generated.

        Of one that we had to end, and whose tokens nobody has told, the events count, and while it drained it is
        believed to have gone on at the usual pace. Without any event nothing is given back.
        """
        request = lease.request
        read = self._read(lease)
        cost = self._cost(lease, read)
        since = lease.draining_since
        if since is not None and lease.input_tokens is None:
            unseen = max(0.0, now - since) * lease.width * self._generated / self._held_s
            cost = max(LEAST_TOKENS, cost + self._output_weight * unseen)
            return cost - charged if lease.output_tokens else max(0.0, cost - charged)
        cost = max(LEAST_TOKENS, cost)
        outputs = _learned(self._outputs, request, 1.0, PRIOR_TOKENS)
        fall = FALL * self._tokens_in(outputs.since_last(now), lease, now)
        outputs.add(lease.output_tokens, fall)
        _mean(self._of_all, request.model, PRIOR_TOKENS).add(lease.output_tokens)
        _learned(self._inputs, request, 1.0, TYPICAL_TOKENS).add(read, fall)
        return cost - charged

    def due_at(self, lease: Lease, charged: float, now: float) -> float:
        """Return when to look next: what is generated is not watched token by token."""
        return now + max(LOOK_S, now - lease.granted_at)

    def instalment(self, lease: Lease, charged: float, now: float) -> float:
        """Return C/2 once more, often enough for what has been generated."""
        step = self.at_dispatch(lease.request)
        behind = self._cost(lease, self._read(lease)) - charged
        return step * max(0, ceil(behind / step))

    def undone(self, lease: Lease, charged: float, *, full: bool) -> float:
        """Return all of it where the backend had no room. A failed try pays for what it has generated."""
        return charged if full and lease.state is LeaseState.FREED else 0.0

    def idle(self, slot_seconds: float, service_s: float) -> float:
        """Return what could have been read and generated meanwhile, at the mean of all models."""
        means = [mean.value for mean in self._of_all.values()]
        output = sum(means) / len(means) if means else TYPICAL_TOKENS
        return self._output_weight * output * slot_seconds / service_s

    def relative(self, request: Request) -> float:
        """Return how much those of its tenant generate beside all of its model."""
        return _relative(self._outputs, self._of_all, request)

    def _tokens_in(self, seconds: float, lease: Lease, now: float) -> float:
        """Return what a slot generates in so many, now that `lease` has ended, too."""
        self._held_s = 0.999 * self._held_s + max(0.0, now - lease.granted_at) * lease.width
        self._generated = 0.999 * self._generated + lease.output_tokens
        return seconds * self._generated / self._held_s

    def _read(self, lease: Lease) -> float:
        told = lease.input_tokens
        if told is not None:
            return told
        request = lease.request
        return min(request.size_bytes / BYTES_PER_TOKEN, _cap(self._inputs, request, TYPICAL_TOKENS))

    def _cost(self, lease: Lease, read: float) -> float:
        return self._input_weight * read + self._output_weight * lease.output_tokens


def _learned(known: dict[Whose, Costs], request: Request, least: float, prior: float) -> Costs:
    """Return what is known of the costs of the tenant's requests to the model."""
    whose = (request.model, request.tenant)
    costs = known.get(whose)
    if costs is None:
        if len(known) >= REMEMBERED:
            del known[next(iter(known))]
        costs = known[whose] = Costs(least, prior)
    return costs


def _mean(known: dict[str, Mean], model: str, prior: float) -> Mean:
    mean = known.get(model)
    if mean is None:
        mean = known[model] = Mean(prior)
    return mean


def _cap(known: dict[Whose, Costs], request: Request, prior: float) -> float:
    costs = known.get((request.model, request.tenant))
    return costs.cap if costs is not None else 2.0 * prior


def _relative(known: dict[Whose, Costs], of_all: dict[str, Mean], request: Request) -> float:
    mine, all_of_them = known.get((request.model, request.tenant)), of_all.get(request.model)
    if mine is None or all_of_them is None or not mine.known:
        return 1.0
    return mine.mean / all_of_them.value
