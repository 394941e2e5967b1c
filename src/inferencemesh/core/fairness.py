"""From what is configured about fairness to the policy that charges (contract D3)."""

from __future__ import annotations

from inferencemesh.core.charge import Arrival, ChargePolicy, PerHeldSlot, PerSlot
from inferencemesh.core.metered import SlotSeconds, Tokens
from inferencemesh.core.model import FairnessSpec


def policy_of(spec: FairnessSpec) -> ChargePolicy:
    """Return a new policy for one admission."""
    if spec.policy == "slots":
        return PerHeldSlot()
    if spec.policy == "fifo":
        return Arrival()
    if spec.unit == "requests":
        return PerSlot()
    if spec.unit == "tokens":
        return Tokens(spec.input_token_weight, spec.output_token_weight)
    return SlotSeconds(spec.limit_s)
