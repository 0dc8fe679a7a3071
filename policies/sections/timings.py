"""How long things take: the section `timings`. All times in seconds per batch."""

from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from policies.sections.fields import (
    PathText,
    Positive,
    PositiveNumber,
    Seconds,
    Section,
    Variation,
    WorkerNumbers,
    WorkerRates,
    one_of,
)


class Erlang(Section):
    """The sum of `erlang` equal exponential phases; cv = 1 / sqrt(erlang)."""

    erlang: Positive
    """Number of phases."""


def _distribution_kind(value: object) -> str:
    return "<erlang>" if isinstance(value, dict | Erlang) else "<name>"


Distribution = Annotated[
    Annotated[
        Literal["constant", "exponential"], one_of("constant", "exponential", "{erlang: k}"), Tag("<name>")
    ]
    | Annotated[Erlang, Tag("<erlang>")],
    Discriminator(_distribution_kind),
]


class RoleTime(Section):
    """Time of one role's workers per batch: exactly one of `seconds` and `tokens_per_second`."""

    seconds: WorkerNumbers | None = None
    """Mean seconds per batch, for all workers or one per worker."""
    tokens_per_second: WorkerRates | None = None
    """Padded slots per second, for all workers or one per worker."""
    cv: Variation | None = None
    """Coefficient of variation of a lognormal factor; None: no variation."""
    distribution: Distribution | None = None
    """Instead of cv: the distribution around the mean; None: constant."""
    first_seconds: Seconds | None = None
    """Replaces each worker's first time (compilation)."""


class LoaderTime(Section):
    """Time of the feed per batch."""

    seconds: Seconds
    """Mean seconds per batch."""
    cv: Variation | None = None
    """As for a role."""
    distribution: Distribution | None = None
    """As for a role."""


class TransferTime(Section):
    """Exposed copying of hidden states to the drafter: exactly one of the two."""

    seconds: Seconds | None = None
    """Seconds per batch."""
    bytes_per_second: PositiveNumber | None = None
    """Bandwidth; needs the hidden-state size of `memory`."""


class StepTime(Section):
    """The optimizer step."""

    seconds: Seconds
    """Seconds per optimizer step."""


class Timings(Section):
    """Numbers for both roles, or a file of measured timings."""

    target: RoleTime | None = None
    """The targets' time; not together with `file`."""
    drafter: RoleTime | None = None
    """The drafters' time; not together with `file`."""
    loader: LoaderTime | None = None
    """The feed's time; None: none, or the file's."""
    transfer: TransferTime | None = None
    """Copying; None: none, or the file's."""
    step: StepTime | None = None
    """The optimizer step; None: none, or the file's."""
    file: PathText | None = None
    """Measured timings (from `profile` or `fit`); loader, transfer and step given here go before its own."""
