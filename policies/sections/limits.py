"""What bounds a run: the sections `memory` and `stop`."""

from typing import Annotated, Literal

from policies.sections.fields import Flag, Number, Positive, Section, Size, allowed, one_of, real

Staging = Annotated[Literal["host", "device"], one_of("host", "device")]


class Memory(Section):
    """Sizes from which staging memory is forecast, and its limits; in bytes, also as `60GiB` or `400MB`."""

    hidden_bytes_per_token: Size | None = None
    """Bytes of hidden states per token; or give hidden_size and taps."""
    hidden_size: Positive | None = None
    """The target's hidden size H."""
    taps: Positive | None = None
    """How many target layers are tapped."""
    dtype_bytes: Positive = 2
    """Bytes per value of the hidden states."""
    keep_last: Flag = False
    """Whether the target's last state travels too (for the soft loss): one more state per token."""
    staging: Staging = "host"
    """Where batches wait: in host memory, or on a drafter's device (with `placement: taker` on the target's)."""
    host_limit: Size | None = None
    """Host memory for staging; None: no limit."""
    device_limit: Size | None = None
    """Memory of one device; None: no limit."""
    drafter_model_bytes: Size | None = None
    """Model, optimizer and activations of a drafter on its device."""
    pinned: Flag = False
    """torch's pinned allocator, which rounds up to a power of two; else exact sizes."""

    @property
    def bytes_per_token(self) -> int | None:
        """Bytes of hidden states per token, however they were given; None where they were not."""
        if self.hidden_bytes_per_token is not None:
            return self.hidden_bytes_per_token
        if self.hidden_size is None or self.taps is None:
            return None
        return self.hidden_size * (self.taps + self.keep_last) * self.dtype_bytes


class Stop(Section):
    """When to end before the data do."""

    max_steps: Positive | None = None
    """Optimizer steps after which the run ends."""
    at_s: Number | None = None
    """Model seconds at which it ends; events at exactly that time still happen."""
    watchdog_s: Annotated[float, allowed("a number >= 0.1", real(0.1))] = 600.0
    """Seconds without a sign of life after which a worker of a real run is given up.

    While a training's worker computes it gives signs, for at most 10 minutes a batch or step, an hour where it loads,
    saves or evaluates: one that hangs in there is given up that much later.
    """
