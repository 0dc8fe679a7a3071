"""Where and with what a profile was measured."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from dflash_run.training.devices import Placement
from dflash_run.training.handles import handle_of
from dflash_run.training.preparation import Preparation
from dflash_run.training.train import threads_for
from dflash_sim.settings import PROCESSES, WORKERS, kinds_of, settings_of
from policies.loading import resolved
from reports.summary import versions

_PACKAGES: Final = ("torch", "transformers", "accelerate", "triton")


def machine() -> dict[str, Any]:
    """Processor, cores, GPUs."""
    found: dict[str, Any] = {"cpu": _cpu(), "cores": os.cpu_count() or 1, "gpus": torch.cuda.device_count()}
    if found["gpus"]:
        found["gpu"] = torch.cuda.get_device_name(0)
    return found


def all_versions() -> dict[str, str]:
    """This package's, Python's, those of what computes, and the driver's."""
    found = versions()
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    driver = _driver()
    return found if driver is None else found | {"driver": driver}


def all_settings(prepared: Preparation, place: str = PROCESSES) -> dict[str, Any]:
    """Everything that the times depend on, besides the shapes of batches: the file's, the model's, the devices'; and
    `place`, where the workers are."""
    shape, pipeline = prepared.shape, prepared.pipeline
    found = settings_of(resolved(pipeline)) | {
        "taps": len(shape.taps),
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "target_layers": shape.target_layers,
        "vocab_size": shape.vocab_size,
        "staging": pipeline.memory.staging,
        WORKERS: place,
        **_devices(prepared.placement),
    }
    if "cpu" in found["target_device"] + found["drafter_device"]:
        topology = pipeline.topology
        found["threads"] = threads_for(topology.targets + topology.drafters)
    return found


def compared_here(placement: Placement) -> dict[str, Any]:
    """What of machine and versions changes times, by dotted keys of a profile; of GPUs only where some are used."""
    found = {"machine.cpu": _cpu(), "versions.torch": all_versions().get("torch")}
    if gpus := placement.gpus():
        found |= {"machine.gpu": _gpu(gpus[0]), "versions.driver": _driver()}
    return {key: value for key, value in found.items() if value is not None}


def _gpu(number: int) -> str | None:
    """By the driver: asked through torch, a launcher would take memory of the GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(handle_of(pynvml, number))
    except Exception:  # no driver, no library, or it cannot be told which of its GPUs this is
        return None
    return name.decode() if isinstance(name, bytes) else str(name)


def _devices(placement: Placement) -> dict[str, str]:
    """The kinds of devices of each role: `cpu`, `cuda`, or both."""
    targets = [name for names in placement.targets for name in names]
    return {"target_device": kinds_of(targets), "drafter_device": kinds_of(placement.drafters)}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no driver, or no library: there is nothing to tell
        return None
