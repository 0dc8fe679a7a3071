"""Random weights for measurements: each tensor is a function of (seed, its name), so that parts agree anywhere."""

import hashlib

import torch

_STD = 0.02


def random_tensor(
    name: str, shape: tuple[int, ...], seed: int, device: torch.device, dtype: torch.dtype, std: float = _STD
) -> torch.Tensor:
    """The random weights of the tensor `name`: ones for norms, zeros for biases, else normal of deviation `std`.

    The same on devices of one kind; a CPU and a GPU draw differently.
    """
    out = torch.empty(shape, device=device, dtype=dtype)
    fill_(out, name, seed, std)
    return out


@torch.no_grad()
def fill_(tensor: torch.Tensor, name: str, seed: int, std: float = _STD) -> None:
    """Fill `tensor` in place, as `random_tensor`."""
    if name.endswith("bias"):
        tensor.zero_()
    elif tensor.dim() < 2:
        tensor.fill_(1.0)
    else:
        stream = torch.Generator(tensor.device)
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        stream.manual_seed(int.from_bytes(digest[:7], "little"))
        tensor.normal_(0.0, std, generator=stream)
