"""How batches move: the sections `feed` (loader → targets) and `dispatch` (targets → drafters)."""

import difflib
from typing import Annotated, Any, Final, Literal

from pydantic import model_validator

from policies.sections.fields import Natural, Positive, Refused, Section, allowed, one_of

POLICIES: Final = ("round_robin", "rotating", "shared", "bucketed")
DEFAULT_DEPTH: Final = 8


def _policy(value: object) -> str:
    if isinstance(value, str) and (value in POLICIES or _is_dotted(value)):
        return value
    near = difflib.get_close_matches(value[:64], POLICIES, 1) if isinstance(value, str) else []
    raise Refused(f"did you mean {near[0]}?" if near else "")


def _is_dotted(value: str) -> bool:
    module, colon, name = value.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


PolicyName = Annotated[str, allowed(f"{', '.join(POLICIES)}, or package.module:Class", _policy)]
FeedPolicy = Annotated[Literal["shared", "rotating"], one_of("shared", "rotating")]
Mix = Annotated[Literal["prefer", "require"], one_of("prefer", "require")]
Placement = Annotated[Literal["taker", "producer"], one_of("taker", "producer")]


class Feed(Section):
    """The hop from the loader to the targets."""

    policy: FeedPolicy = "shared"
    """`shared`: targets pull their work. `rotating`: batches are dealt in fixed turns."""
    depth: Positive = 4
    """Batches per lane, as for `dispatch.depth`."""


class Dispatch(Section):
    """The hop of the hidden states, from the targets to the drafters."""

    policy: PolicyName = "shared"
    """A built-in policy, or `package.module:Class` of your own."""
    depth: Positive | None = None
    """Batches per lane, from which a policy works out its capacity; 8, or None where `capacity` is given."""
    capacity: Natural | None = None
    """Instead of depth: a lane's capacity in batches that wait (`bucketed`: of all lanes); 0: none may."""
    prefetch: Natural = 0
    """Batches that a drafter takes ahead of the one it trains on."""
    mix: Mix = "prefer"
    """`bucketed`: whether a step should, or must, hold several buckets."""
    min_buckets: Positive = 2
    """`bucketed` with `mix: require`: different buckets in each step, while the data allow it."""
    placement: Placement | None = None
    """Where a target puts its hidden states. None: into staging, so that every take copies. `producer`: on the device
    of the lane's only reader, else of drafter (target mod D); another taker copies again. `taker`: no second copy."""

    @model_validator(mode="before")
    @classmethod
    def _default_depth(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("depth") is None and given.get("capacity") is None:
            return {**given, "depth": DEFAULT_DEPTH}
        return given
