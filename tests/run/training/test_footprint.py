"""Memory forecasts: the parts that can be counted exactly, and what a limit refuses."""

from pathlib import Path

import pytest

from dflash_run.model.config import target_config
from dflash_run.model.drafter import Drafter
from dflash_run.model.shape import DrafterShape
from dflash_run.synthetic import write_target
from dflash_run.training.footprint import drafter_footprint, drafter_parameters, target_footprint
from dflash_run.training.preparation import prepare_training
from policies.faults import PipelineError
from tests.run.model.tiny import SHAPE, SLIDING
from tests.run.training.cases import training_file, training_pipeline


@pytest.mark.parametrize("shape", [SHAPE, SLIDING])
def test_the_number_of_parameters_is_that_of_the_drafter(shape: object) -> None:
    assert drafter_parameters(shape) == sum(p.numel() for p in Drafter(shape, seed=0, device="meta").parameters())  # type: ignore[arg-type]


def test_a_pass_that_is_cut_needs_less_memory_and_models_the_same(tmp_path: Path) -> None:
    pipeline = training_pipeline(tmp_path)
    cut = training_pipeline(tmp_path, training={"pass_slots": 16})
    sizes = {"slot_bytes": 4096, "samples": 64, "length": 1000, "tied": True}
    whole, part = (drafter_footprint(p, SHAPE, **sizes) for p in (pipeline, cut))  # type: ignore[arg-type]
    assert part.activations < whole.activations and part.model == whole.model


def test_a_device_that_cannot_hold_its_workers_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    file = training_file(tmp_path, memory={"device_limit": "1MB"})
    file["topology"]["devices"] = {"targets": ["cuda:0"], "drafters": ["cuda:0"]}
    from policies.loading import from_mapping

    with pytest.raises(PipelineError, match=r"memory.device_limit.*cuda:0 needs"):
        prepare_training(from_mapping(file), gpus=1)


def test_the_forecast_is_within_five_percent_of_what_an_h200_allocated(tmp_path: Path) -> None:
    """Measured: Qwen3-1.7B shape, 1 + 1 on one GPU, `staging: device`, 60 batches of 8 x 2,048 tokens, torch 2.11."""
    write_target(tmp_path / "large", "qwen3-1.7b")
    model = {"name_or_path": str(tmp_path / "large"), "block_size": 16, "drafter_layers": 5, "mask_token_id": 151_669}
    pipeline = training_pipeline(
        tmp_path,
        model={**model, "dtype": "bfloat16", "taps": [1, 7, 13, 19, 25]},
        training={"anchors": 512, "dtype": "bfloat16"},
        dispatch={"prefetch": 1},
    )
    shape = DrafterShape.of(target_config(pipeline.model), pipeline.model, 151_669)
    drafter = drafter_footprint(pipeline, shape, slot_bytes=335_548_416, samples=8, length=2048, tied=True)
    target = target_footprint(pipeline, shape, slot_bytes=335_548_416, slots=7, most=8 * 2048)
    assert drafter.total == pytest.approx(40_085_182_464, rel=0.05)
    assert target.total == pytest.approx(6_160_797_184, rel=0.05)
