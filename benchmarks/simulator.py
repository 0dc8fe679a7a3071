"""How fast the simulator is, as ratios in one run: `make bench`.

The yardstick is a textbook SimPy model of the same two hops (loader → targets → drafters over two `simpy.Store`s)
without any metrics. Ours keeps full metrics and sends every batch through the dispatcher on both hops. The two are
timed in turn, several times, because machines drift; the median ratio counts. What a run needs before it starts (the
batch plan, the drawn times) and the summary after it are part of our time.
"""

import gc
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from typing import Any

import simpy

import policies.dispatcher
from dflash_sim.prediction import simulate, summary_of
from policies.loading import load, replaced

ROUNDS = 5
BATCHES = 150_000
WEEK = 756_000
TARGETS, DRAFTERS, FEED, DEPTH = 5, 3, 20, 8
TARGET_S, DRAFTER_S = 65536 / 3880, 65536 / 6750

Process = Generator[simpy.Event, Any, None]


def textbook(batches: int, lanes: int) -> float:
    """The same pipeline as a textbook writes it: bounded stores, one process per worker, no metrics.

    One store that all drafters share, or one store per drafter, fed by target i % 3.
    """
    env = simpy.Environment()
    feed = simpy.Store(env, capacity=FEED)
    stores = [simpy.Store(env, capacity=DEPTH * DRAFTERS // lanes) for _ in range(lanes)]

    def loader() -> Process:
        for batch in range(batches):
            yield feed.put(batch)

    def target(store: simpy.Store) -> Process:
        while True:
            batch = yield feed.get()
            yield env.timeout(TARGET_S)
            yield store.put(batch)

    def drafter(store: simpy.Store) -> Process:
        while True:
            yield store.get()
            yield env.timeout(DRAFTER_S)

    env.process(loader())
    for number in range(TARGETS):
        env.process(target(stores[number % lanes]))
    for number in range(DRAFTERS):
        env.process(drafter(stores[number % lanes]))
    env.run()
    return float(env.now)


def ours(batches: int, policy: str) -> float:
    """The simulator on the record's topology."""
    pipeline = load("examples/field_record.yaml")
    pipeline = replaced(pipeline, {"data.batches": batches, "dispatch.policy": policy})
    return float(summary_of(simulate(pipeline))["makespan_s"])


def seconds(run: Any, *arguments: Any) -> float:
    gc.collect()
    start = time.process_time()
    run(*arguments)
    return time.process_time() - start


def compare_speed(policy: str, lanes: int) -> None:
    ratios, rates, textbooks = [], [], []
    for _ in range(ROUNDS):
        reference, own = seconds(textbook, BATCHES, lanes), seconds(ours, BATCHES, policy)
        ratios.append(reference / own)
        rates.append(BATCHES / own)
        textbooks.append(BATCHES / reference)
    print(
        f"{policy:12} {statistics.median(rates):8,.0f} batches/s, textbook {statistics.median(textbooks):8,.0f}: "
        f"ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})"
    )


def week() -> None:
    """One week of the record's topology, alone in this process."""
    spent = seconds(ours, WEEK, "shared")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{WEEK:,} batches (7 days, 5 + 3 shared): {spent:.1f} s, peak memory {peak:.0f} MB")


def main() -> None:
    if sys.argv[1:] == ["week"]:
        week()
        return
    how = "interpreted" if policies.dispatcher.__file__.endswith(".py") else "compiled"
    print(f"{how} simulator against a textbook two-hop simpy.Store model, {BATCHES:,} batches, median of {ROUNDS}")
    for policy, lanes in (("shared", 1), ("round_robin", DRAFTERS)):
        compare_speed(policy, lanes)
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, "week"], check=True, env=os.environ)


if __name__ == "__main__":
    main()
