"""What is learnt under each policy: the tiny example, 2 + 2 on the CPU, several seeds, beside a bigram and an untrained
drafter. `python benchmarks/tiny_policies.py`; the table of docs/training.md. A case whose summary is there is not
trained again.
"""

import argparse
import json
import multiprocessing
import statistics
from pathlib import Path
from typing import Any

import torch

from dflash_run.tiny.baselines import ACCEPTED, LOSS, bigram, untrained
from dflash_run.training.preparation import prepare_training
from dflash_run.training.train import processes, train
from dflash_sim.prediction import summary_of
from policies.loading import load, replaced
from policies.pipeline import Pipeline
from reports.summary import to_json
from reports.writing import write_text

FILE = Path("examples/tiny/pipeline.yaml")
CASES = (("round_robin", "step"), ("rotating", "step"), ("shared", "step"), ("bucketed", "step"), ("shared", "pooled"))


def main() -> None:
    """Train every case that is not there yet, then print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--epochs", type=int, default=load(FILE).data.epochs)
    options.add_argument("-o", "--out", type=Path, default=Path("runs/tiny-policies"))
    options.add_argument("--there", action="store_true", help="only policies whose seeds are all there")
    given = options.parse_args()
    multiprocessing.set_forkserver_preload(["dflash_run.training.drafter_loop", "dflash_run.training.target_loop"])
    seeds = range(given.seeds)
    torch.set_num_threads(1)
    base = {seed: _baselines(_pipeline(seed, given.epochs)) for seed in seeds}
    rows: dict[str, list[dict[str, float]]] = {}
    for case in CASES:
        folders = {seed: given.out / f"epochs-{given.epochs}" / f"{'-'.join(case)}-{seed}" for seed in seeds}
        if given.there and not all((folder / "summary.json").exists() for folder in folders.values()):
            continue
        for seed, folder in folders.items():
            changes = {"dispatch.policy": case[0], "training.sync": case[1]}
            figures = _trained(replaced(_pipeline(seed, given.epochs), changes), folder)
            rows.setdefault(", ".join(case), []).append(figures)
            print(f"{', '.join(case)}, seed {seed}: {figures[ACCEPTED]:.3f}, loss {figures[LOSS]:.3f}", flush=True)
    _print(base, rows)


def _pipeline(seed: int, epochs: int) -> Pipeline:
    changes = {"topology.targets": 2, "topology.drafters": 2, "seed": seed}
    return replaced(load(FILE), {**changes, "data.epochs": epochs})


def _baselines(pipeline: Pipeline) -> dict[str, float]:
    prepared = prepare_training(pipeline, gpus=0)
    start = untrained(prepared)
    assert start.loss is not None
    return {"bigram": bigram(prepared).accepted, "untrained": start.accepted, "untrained_loss": start.loss}


def _trained(pipeline: Pipeline, folder: Path) -> dict[str, float]:
    """Held-out figures at the end; trains if that was not done before."""
    summary: dict[str, Any]
    file = folder / "summary.json"
    if not file.exists():
        run, told = train(prepare_training(pipeline, gpus=0), folder, hire=processes("forkserver"))
        summary = summary_of(run, kind="training", **told)
        if summary["stop_reason"] != "data_exhausted" or run.failures:
            raise SystemExit(f"{folder}: {summary['stop_reason']}, {run.failures}")
        write_text(file, to_json(summary))
    summary = json.loads(file.read_text())
    assert summary["batches"]["trained"] == summary["batches"]["planned"]
    figures: dict[str, float] = summary["training"]["figures"]
    return figures


def _print(base: dict[int, dict[str, float]], rows: dict[str, list[dict[str, float]]]) -> None:
    seeds = "".join(f" seed {seed} |" for seed in base)
    print(f"\n| held-out expected accepted length |{seeds} mean ± sd | mean loss |\n|{'---|' * (len(base) + 3)}")
    _row("bigram", [each["bigram"] for each in base.values()], [])
    _row("untrained", [each["untrained"] for each in base.values()], [e["untrained_loss"] for e in base.values()])
    for name, found in rows.items():
        _row(name, [each[ACCEPTED] for each in found], [each[LOSS] for each in found])
    means = {name: statistics.mean(each[ACCEPTED] for each in found) for name, found in rows.items()}
    spread = [statistics.variance(each[ACCEPTED] for each in found) for found in rows.values() if len(found) > 1]
    pooled = statistics.mean(spread) ** 0.5 if spread else 0.0
    apart = max(means.values()) - min(means.values())
    worst = min(each[ACCEPTED] / base[seed]["bigram"] for found in rows.values() for seed, each in enumerate(found))
    in_deviations = f", {apart / pooled:.2f} pooled standard deviations ({pooled:.3f})" if pooled else ""
    print(f"\nmeans lie {apart:.3f} apart: {apart / min(means.values()):.1%} of the smallest{in_deviations}")
    print(f"trained ÷ bigram: at least {worst:.2f} in every seed and policy")


def _row(name: str, accepted: list[float], losses: list[float]) -> None:
    sd = f" ± {statistics.stdev(accepted):.3f}" if len(accepted) > 1 else ""
    loss = f"{statistics.mean(losses):.3f}" if losses else "–"
    values = " | ".join(f"{value:.3f}" for value in accepted)
    print(f"| {name} | {values} | {statistics.mean(accepted):.3f}{sd} | {loss} |")


if __name__ == "__main__":
    main()
