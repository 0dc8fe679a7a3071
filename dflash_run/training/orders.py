"""What a worker of a training is told once, before it starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dflash_run.transport.parcel import Slot


@dataclass(frozen=True, kw_only=True)
class TrainingOrders:
    """For one worker; plain values, which travel to a new process."""

    number: int
    """Its number within its role."""
    devices: tuple[str, ...]
    """Where it computes: one device, or the GPUs that a target spreads over."""
    config: dict[str, Any]
    """The resolved pipeline."""
    corpus: Path
    """Folder of the tokenised samples."""
    mask_token_id: int
    slot_bytes: int
    """Size of a slot, its head included."""
    records: Path
    """The file of the worker's own records."""
    probe: Slot
    """Targets: the slot of the self-test."""
    resume: Path | None = None
    """Drafters: the checkpoint's folder to start from."""
    verify: bool = False
    """Whether every arrival is compared by its checksum."""
    heartbeat_s: float = 1.0
    """While it computes it says so at least this often."""
    fails_at: int | None = None
    """Fail on taking this batch of its own, counted from 1."""
    failure: str = "crash"
    """`crash`, `hang`, or `hang_in_step`: inside the collective of the step that the batch belongs to."""
    threads: int = 1
    """Threads that torch may use on the CPU."""


PEAK: Final = ".peak.json"
"""Ending of the file, beside the records, in which a worker leaves the most memory that it had."""
