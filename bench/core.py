"""Decisions per second of admission alone, on one core: `python -m bench.core [--json] [--tenants N] [--seconds S]`.

N tenants wait all the while; a slot is released, its request settled, the next waiter granted, and its tenant offers
another request. Offer, grant and settle count as a decision each; the release that comes with a settle does not.
Charges are those of the default, slot-seconds. CPU time of this process, garbage collection as in the gateway included.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time

from inferencemesh.core.admission import Admission, Granted
from inferencemesh.core.fairness import policy_of
from inferencemesh.core.model import BackendSpec, FairnessSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import Request
from inferencemesh.runtime.garbage import collect_seldom

DONE = Outcome(Phase.COMPLETE, "ok")
SLOTS = 64


class Bench:
    """Admission with `tenants` waiting tenants, and the loop."""

    def __init__(self, tenants: int, *, unit: str = "slot_seconds", policy: str = "sfq") -> None:
        self.admission = Admission(
            [BackendSpec("b", SLOTS)],
            [ModelSpec("m", ("b",), 1_000_000, queue_timeout_s=1e9, refuse_hopeless=False)],
            [TenantSpec(f"t{number}") for number in range(tenants)],
            Limits(max_waiting_total=1_000_000),
            rng=random.Random(1),
            charge=policy_of(FairnessSpec(policy, unit)),
        )
        self.now = 0.0
        self.running: list[Request] = []
        self._drawn = 0
        rng = random.Random(2)
        self._draws = [rng.randrange(SLOTS) for _ in range(4096)]  # who ends next
        for number in range(max(tenants, SLOTS)):  # the first ones run
            self.offer(f"t{number % tenants}")
        for number in range(tenants):
            self.offer(f"t{number}")

    def offer(self, tenant: str) -> None:
        """One request more."""
        request = Request("r", tenant, "m", arrived_at=self.now, deadline_at=1e9)
        for effect in self.admission.offer(request, self.now):
            if type(effect) is Granted:
                self.running.append(effect.request)

    def cycle(self) -> None:
        """Three decisions."""
        self.now += 0.01
        running = self.running
        index = self._draws[self._drawn & 4095]
        self._drawn += 1
        request, running[index] = running[index], running[-1]
        running.pop()
        lease = request.lease
        assert lease is not None
        admission = self.admission
        for effect in admission.release(lease, self.now):
            if type(effect) is Granted:
                self.running.append(effect.request)
        admission.settle(request, DONE, self.now)
        request.lease = None  # as the gateway does: no circle is left to the collector
        admission.next_wake_at()
        self.offer(request.tenant)

    def run(self, seconds: float) -> float:
        """Decisions per CPU second."""
        for _ in range(2000):
            self.cycle()
        cycles = 0
        began = time.process_time()
        while time.process_time() - began < seconds:
            for _ in range(200):
                self.cycle()
            cycles += 200
        return 3 * cycles / (time.process_time() - began)


def main() -> None:
    """Measure with 10 tenants and with many."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.core", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    result: dict[int, float] = {}
    for count in (10, chosen.tenants):
        bench = Bench(count)
        collect_seldom()  # as the gateway does
        result[count] = bench.run(chosen.seconds)
        gc.unfreeze()
    if chosen.json:
        print(json.dumps({"decisions_per_second": result}))
        return
    for count, per_s in result.items():
        print(f"{count:>7,} waiting tenants: {per_s:>9,.0f} decisions/s ({3e6 / per_s:.1f} µs per request)")


if __name__ == "__main__":
    main()
