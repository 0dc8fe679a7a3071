"""What is validated: a table of small trainings that need nothing but this package, by part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from dflash_run.synthetic import SHAPES, write_target, write_tokens

CPU: Final = "cpu"
NEW, KEPT, THREADS = "new processes", "kept processes", "threads"
"""Where workers come from: started for the case, kept for all cases of the part, or threads on parts of one GPU."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training, profiled, predicted, run and compared."""

    name: str
    """Also of its folder."""
    part: str
    """What `--part` takes: cases of a part are run together."""
    minutes: float
    """What it takes, about."""
    gpus: int = 0
    workers: str = NEW
    """`NEW`, `KEPT` or `THREADS`."""
    sizes: tuple[int, ...] | None = None
    """Of `THREADS`: multiprocessors of each worker, targets first; None: evenly."""
    shape: str = "tiny"
    """Of the target, a name in `synthetic.SHAPES`."""
    samples: int
    mean: float
    """Of the lengths, which are lognormal."""
    sigma: float = 0.3
    longest: int
    growth: float = 1.0
    """The last samples are so much longer than the first, in the order of the data."""
    seconds: float | None = None
    """How long the run is to take once it is warm: with the profile, as many samples as that needs take the place of
    `samples`, which then only the profile sees. None: `samples` are trained on."""
    rate_limit: float = 0.03
    """Relative difference allowed to throughput and time."""
    share_limit: float = 0.03
    """Difference allowed to shares of time."""
    end_limit: float = 0.02
    """Relative difference allowed to the end as foreseen after a tenth of the run."""
    file: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the pipeline file."""

    def prepare(self, folder: Path) -> dict[str, Any]:
        """Write target and data into `folder`; returns the pipeline file's mapping."""
        target = folder / f"target-{self.shape}"
        write_target(target, self.shape)
        vocab = SHAPES[self.shape]["vocab_size"] - 10
        sizes = (vocab, self.samples, self.mean, self.sigma, self.longest, self.growth)
        data = folder / f"tokens-{'-'.join(f'{each:g}' for each in sizes)}.jsonl"
        if not data.exists():  # cases of the same data share it
            write_tokens(data, self._lengths(), vocab=vocab, seed=1)
        model = {
            "name_or_path": str(target),
            "tokenizer": "bytes",
            "random_weights": True,
            "mask_token_id": vocab + 9,
            **self.file.get("model", {}),
        }
        training = {"tracker": "none", **self.file.get("training", {})}
        given = {"path": str(data), **self.file.get("data", {})}
        return {**self.file, "name": self.name, "model": model, "training": training, "data": given}

    def _lengths(self) -> list[int]:
        rng = np.random.default_rng(5)
        mu = np.log(self.mean) - self.sigma**2 / 2
        drawn = rng.lognormal(mu, self.sigma, self.samples) * np.linspace(1.0, self.growth, self.samples)
        lengths: list[int] = drawn.clip(16, self.longest).astype(int).tolist()
        return lengths


def _topology(targets: int, drafters: int, device: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"targets": targets, "drafters": drafters}
    if device is not None:
        found["devices"] = {"targets": [device] * targets, "drafters": [device] * drafters}
    return found


def _cpu(name: str, targets: int, drafters: int, policy: str, minutes: float, **changes: Any) -> Case:
    file = {
        "topology": _topology(targets, drafters, "cpu"),
        "dispatch": {"policy": policy, "depth": 4},
        "data": {"batch": {"samples": 4}, "order": "given"},
        "model": {"dtype": "float32", "block_size": 4, "drafter_layers": 1, "taps": [1]},
        "training": {"sync": "none", "anchors": 32, "dtype": "float32", "gamma": 4},
    }
    sizes: dict[str, Any] = {"samples": 1200, "mean": 220, "longest": 512} | changes
    # Processors of a shared machine vary more than the model errs: the limits say what is fair to ask of them.
    sizes |= {"rate_limit": 0.10, "share_limit": 0.10, "end_limit": 0.10}
    return Case(name=name, part=CPU, minutes=minutes, file=file, **sizes)


def _gpu(name: str, part: str, topology: dict[str, Any], **changes: Any) -> Case:
    anchors, policy = changes.pop("anchors", 72), changes.pop("policy", "shared")
    sync, edges = changes.pop("sync", "none"), changes.pop("edges", [512, 1024])
    workers = changes.get("workers", NEW)
    named = {name for names in topology.get("devices", {}).values() for name in names}
    gpus = 1 if workers == THREADS else len(named) or topology["targets"] + topology["drafters"]
    file = {
        "topology": topology,
        "dispatch": {"policy": policy, "depth": 4, "prefetch": 1},
        "data": {
            "batch": {"samples": changes.pop("batch", 8)},
            "order": changes.pop("order", "shuffled"),
            "buckets": edges if policy == "bucketed" else [],
            "max_length": changes.get("longest", 2048),
        },
        "model": {"block_size": 16, "drafter_layers": 5},
        "training": {"sync": sync, "anchors": anchors},
        "memory": {"staging": "device"},
    }
    sizes: dict[str, Any] = {"shape": "qwen3-1.7b", "samples": 1600, "mean": 900, "longest": 2048, "seconds": 70}
    sizes["minutes"] = 2.6
    return Case(name=name, part=part, gpus=gpus, file=file, **sizes | changes)


def _cases() -> Iterator[Case]:
    yield _cpu("cpu-1-1-shared", 1, 1, "shared", 1.5)
    yield _cpu("cpu-1-1-growing", 1, 1, "shared", 1.5, growth=2.0, mean=150)
    yield _cpu("cpu-2-1-shared", 2, 1, "shared", 1.5)
    apart: dict[str, Any] = {"workers": KEPT, "seconds": 62}
    yield _gpu("gpu-1-1", "two-gpus", _topology(1, 1), **apart)
    yield _gpu("gpu-1-1-target-bound", "two-gpus", _topology(1, 1), anchors=16, **apart)
    yield _gpu("gpu-1-1-drafter-bound", "two-gpus", _topology(1, 1), anchors=512, **apart)
    yield _gpu("gpu-1-1-one-card", "one-gpu", _topology(1, 1, "cuda:0"))
    drifting = {"growth": 2.0, "order": "given", "mean": 600, "end_limit": 0.05}
    yield _gpu("gpu-1-1-growing", "one-gpu", _topology(1, 1, "cuda:0"), **drifting)
    # Half of the multiprocessors, since all of them come up against the GPU's power limit (one case shows that). Large
    # batches, since threads share an interpreter and must not launch for most of their time.
    parts: dict[str, Any] = {"workers": THREADS, "sizes": (8,) * 8, "batch": 4, "anchors": 48, "samples": 1600}
    parts |= {"seconds": 62, "longest": 1536, "minutes": 1.4}
    for policy in POLICIES:
        part = "one-card-bucketed" if policy == "bucketed" else "one-card"  # other batches, so a profile of its own
        yield _gpu(f"one-card-5-3-{policy}", part, _topology(5, 3), policy=policy, **parts)
    whole = parts | {"sizes": (16,) * 8, "batch": 8}
    yield _gpu("one-card-5-3-whole", "one-card-whole", _topology(5, 3), **whole)
    slow = parts | {"sizes": (8,) * 5 + (16, 16, 8), "anchors": 96, "minutes": 2.0}
    yield _gpu("one-card-5-3-slow-drafter", "one-card-slow", _topology(5, 3), **slow)
    yield from _colocated()
    for gpus in range(2, MOST_GPUS + 1):
        yield from _host(gpus)


def _colocated() -> Iterator[Case]:
    """GPUs that have a target and a drafter each, and the record's topology on four of them, two workers each."""
    every = {"targets": ["cuda:0", "cuda:1"], "drafters": ["cuda:0", "cuda:1"]}
    two = {"targets": 2, "drafters": 2, "devices": every}
    yield _gpu("colocated-2-2-shared", "colocated", two, workers=KEPT, batch=4, anchors=32)
    pairs = {"targets": [f"cuda:{gpu}" for gpu in (0, 1, 2, 3, 0)], "drafters": ["cuda:1", "cuda:2", "cuda:3"]}
    four = {"targets": 5, "drafters": 3, "devices": pairs}
    for policy in POLICIES:
        name = f"four-cards-5-3-{policy}"
        yield _gpu(name, "four-cards", four, workers=KEPT, policy=policy, batch=4, anchors=32, minutes=1.7)


def _host(gpus: int) -> Iterator[Case]:
    """The record's models and lengths on all GPUs of a host: its split, 5 to 3, and one target more or fewer.

    Where that split has one drafter, steps are those of a split with two, if there are as many GPUs.
    """
    targets = min(max(round(gpus * 5 / 8), 1), gpus - 1)
    splits = [(each, gpus - each) for each in (targets, targets + 1, targets - 1) if 0 < each < gpus]
    wide: dict[str, Any] = {"workers": KEPT, "shape": "qwen3-8b", "batch": 2, "anchors": 64, "mean": 2068}
    wide |= {"sigma": 0.6, "longest": 4096, "samples": 600, "seconds": 60, "minutes": 1.7, "edges": [1024, 2048]}
    part = f"{HOST}{gpus}"
    for policy in POLICIES:
        name = f"{part}-{splits[0][0]}-{splits[0][1]}-{policy}"
        yield _gpu(name, f"{part}-policies", _topology(*splits[0]), policy=policy, **wide)
    joint = next((split for split in splits if split[1] > 1), splits[0])
    for policy, sync in (("round_robin", "step"), ("shared", "step"), ("shared", "pooled")):
        name = f"{part}-{joint[0]}-{joint[1]}-{policy}-{sync}"
        yield _gpu(name, f"{part}-steps", _topology(*joint), policy=policy, sync=sync, **wide)
    for split in splits[1:]:
        yield _gpu(f"{part}-{split[0]}-{split[1]}-shared", f"{part}-splits", _topology(*split), **wide)


HOST: Final = "gpu"
HOST_PARTS: Final = ("policies", "steps", "splits")
"""Of all GPUs of a host: `gpu8-policies` and so on."""
MOST_GPUS: Final = 16
"""Of a host whose splits are known."""
POLICIES: Final = ("round_robin", "rotating", "shared", "bucketed")
CASES: Final = tuple(_cases())
PARTS: Final = tuple(dict.fromkeys(case.part for case in CASES))
