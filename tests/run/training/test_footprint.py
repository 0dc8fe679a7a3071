"""Memory forecasts: the parts that can be counted exactly, and what a limit refuses."""

from pathlib import Path

import pytest

from dflash_run.model.drafter import Drafter
from dflash_run.training.footprint import drafter_footprint, drafter_parameters
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
