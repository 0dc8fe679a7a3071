"""Named tensors in a file, taken only if names and shapes are exactly the ones expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from policies.faults import ABSENT, Fault, PipelineError

FILE_ERRORS: Final = (OSError, SafetensorError)
"""What reading and writing raise: safetensors has an error of its own for a full disk, too."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors` as safetensors, from whatever device they are on."""
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})


def read_tensors(path: Path, expected: Mapping[str, Tensor], key: str) -> dict[str, Tensor]:
    """The tensors of a file, on the host, each with the shape of the expected one and a float type.

    Raises PipelineError with every missing, unknown and misshapen name, under `key`: a name that is quietly left
    out would leave a weight at random.
    """
    check_tensors(path, expected, key)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, key, error) from error


def check_tensors(path: Path, expected: Mapping[str, Tensor], key: str) -> None:
    """As `read_tensors`, from the file's head and length alone. Numbers are not looked at."""
    try:
        with safe_open(path, framework="pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: (list(part.get_shape()), str(part.get_dtype())) for name, part in parts.items()}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, key, error) from error
    faults = list(_misfits(found, expected, key, path.name))
    if faults:
        raise PipelineError(faults)


def check_finite(path: Path, key: str) -> None:
    """Read all numbers of a file: NaN and infinities would be trained on. Raises PipelineError."""
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if not bool(file.get_tensor(name).isfinite().all())]  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, key, error) from error
    if names:
        rule = f"must hold finite numbers: {names[0]} in {path.name} has others"
        raise PipelineError([Fault(key, str(path.parent), rule, "take an earlier one")])


def _unreadable(path: Path, key: str, error: Exception) -> PipelineError:
    return PipelineError([Fault(key, str(path), f"must be a readable safetensors file: {error}")])


def _misfits(
    found: Mapping[str, tuple[list[int], str]], expected: Mapping[str, Tensor], key: str, file: str
) -> Iterator[Fault]:
    for name in sorted(expected.keys() - found.keys()):
        yield Fault(key, ABSENT, f"must hold the tensor {name} in {file}", "it is missing")
    for name in sorted(found.keys() - expected.keys()):
        yield Fault(key, name, f"must hold no other tensors in {file} than the drafter has", "it is unknown")
    for name in sorted(found.keys() & expected.keys()):
        (shape, dtype), wanted = found[name], list(expected[name].shape)
        if shape != wanted:
            yield Fault(key, shape, f"must have the shape {wanted} for {name} in {file}")
        elif "F" not in dtype:  # F32, BF16, F8_E4M3
            yield Fault(key, dtype, f"must hold floating-point numbers for {name} in {file}")
