"""Run the attacks: a table, then one JSON line; exit code 1 if a promise did not hold.

A check that the machine is too slow for is no broken promise: it is counted and named as without a result.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import traceback

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.attack.counts import Budget, Counts, Skipped
from tests.attack.kinds import KINDS, too_slow

SHOWN = 10
"""Violations of one kind that are printed."""


def attack(kind: str, seed: int, seconds: float) -> Counts:
    """One kind; the same seed makes the same choices, though time decides how many."""
    try:
        return KINDS[kind](random.Random(f"{seed} {kind}"), Budget(seconds))
    except Skipped as reason:
        return Counts(skipped=str(reason))
    except subprocess.TimeoutExpired as late:
        return Counts(no_result=[too_slow(late)])
    except Exception:  # a fault of the kit must not hide what the other kinds find
        return Counts(violations=[f"the attack itself failed: {traceback.format_exc(limit=-4)}"])


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="for all kinds together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(KINDS), help=f"some of {','.join(KINDS)}")
    options = parser.parse_args()
    kinds = [kind for kind in options.only.split(",") if kind]
    if unknown := set(kinds) - KINDS.keys():
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    results: dict[str, Counts] = {}
    ends = time.monotonic() + 60 * options.minutes
    for index, kind in enumerate(kinds):
        share = max(0.0, ends - time.monotonic()) / (len(kinds) - index)
        began = time.monotonic()
        results[kind] = attack(kind, options.seed, share)
        show(kind, results[kind], time.monotonic() - began)
    facts = {
        kind: {
            "rounds": c.rounds, "outcomes": dict(c.outcomes), "violations": c.violations, "no_result": c.no_result,
            "skipped": c.skipped,
        }
        for kind, c in results.items()
    }  # fmt: skip
    print(json.dumps({"seed": options.seed, "minutes": options.minutes, "kinds": facts}))
    return int(any(counts.violations for counts in results.values()))


def show(kind: str, counts: Counts, seconds: float) -> None:
    """Lines of the table for one kind."""
    if counts.skipped:
        print(f"{kind:8} skipped: {counts.skipped}", flush=True)
        return
    print(f"{kind:8} {counts.rounds:6} rounds {seconds:6.0f} s, {len(counts.violations)} promises broken", flush=True)
    for outcome, count in counts.outcomes.most_common():
        print(f"         {count:6} {outcome}")
    for violation in counts.violations[:SHOWN]:
        print(f"         broken: {violation}", flush=True)
    for reason in counts.no_result:
        print(f"         no result: {reason}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
