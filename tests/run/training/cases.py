"""Small trainings for tests: a random target of a few thousand weights, random tokens, everything on the CPU."""

import multiprocessing
from pathlib import Path
from typing import Any

from dflash_run.profiling.profile import WORK
from dflash_run.synthetic import write_target, write_tokens
from dflash_run.training.train import processes
from policies.loading import from_mapping
from policies.pipeline import Pipeline

multiprocessing.set_forkserver_preload(
    [
        "dflash_run.training.drafter_loop",
        "dflash_run.training.target_loop",
        "transformers.models.qwen3.modeling_qwen3",
        "torch.nn.attention.flex_attention",
    ]
)
START = "forkserver"
"""Imports take seconds a process: tests take them once. What users run spawns, as the end-to-end test does."""
HIRED = processes(START)
PROFILED = processes(START, WORK)
"""They can also be measured."""


def training_file(
    folder: Path, *, samples: int = 24, targets: int = 1, drafters: int = 1, length: int = 24, **changes: Any
) -> dict[str, Any]:
    """The mapping of a training over `samples` samples of up to `length` tokens; `changes` replace whole sections."""
    if not (folder / "target").exists():
        write_target(folder / "target", "tiny")
    data = folder / f"data-{samples}-{length}.jsonl"
    if not data.exists():
        write_tokens(data, [length - k % 7 for k in range(samples)], vocab=290, seed=1)
    base: dict[str, Any] = {
        "topology": {
            "targets": targets,
            "drafters": drafters,
            "devices": {"targets": ["cpu"] * targets, "drafters": ["cpu"] * drafters},
        },
        "dispatch": {"policy": "shared", "depth": 2},
        "data": {"path": str(data), "batch": {"samples": 2}},
        "model": {
            "name_or_path": str(folder / "target"),
            "tokenizer": "bytes",
            "random_weights": True,
            "dtype": "float32",
            "block_size": 4,
            "drafter_layers": 1,
            "taps": [1],
            "mask_token_id": 299,
        },
        "training": {"sync": "step", "anchors": 4, "dtype": "float32", "tracker": "none", "gamma": 4},
        "stop": {"watchdog_s": 60},
    }
    for section, values in changes.items():
        base[section] = {**base.get(section, {}), **values} if isinstance(values, dict) else values
    return base


def training_pipeline(folder: Path, **changes: Any) -> Pipeline:
    """As a checked pipeline."""
    return from_mapping(training_file(folder, **changes))
