"""Named tensors in a file, taken only if names and shapes are exactly the ones expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from policies.faults import ABSENT, Fault, PipelineError


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors` as safetensors, from whatever device they are on."""
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})


def read_tensors(path: Path, expected: Mapping[str, Tensor], key: str) -> dict[str, Tensor]:
    """The tensors of a file, on the host, each with the shape of the expected one and a float type.

    Raises PipelineError with every missing, unknown and misshapen name, under `key`: a name that is quietly left
    out would leave a weight at random.
    """
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        rule = f"must be a readable safetensors file: {error}"
        raise PipelineError([Fault(key, str(path), rule)]) from error
    faults = list(_misfits(found, expected, key, path.name))
    if faults:
        raise PipelineError(faults)
    return found


def _misfits(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], key: str, file: str
) -> Iterator[Fault]:
    for name in sorted(expected.keys() - found.keys()):
        yield Fault(key, ABSENT, f"must hold the tensor {name} in {file}", "it is missing")
    for name in sorted(found.keys() - expected.keys()):
        yield Fault(key, name, f"must hold no other tensors in {file} than the drafter has", "it is unknown")
    for name in sorted(found.keys() & expected.keys()):
        shape, wanted = list(found[name].shape), list(expected[name].shape)
        if shape != wanted:
            yield Fault(key, shape, f"must have the shape {wanted} for {name} in {file}")
        elif not found[name].is_floating_point():
            yield Fault(key, str(found[name].dtype), f"must hold floating-point numbers for {name} in {file}")
