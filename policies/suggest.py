"""The keys that the pipeline file knows, and the nearest to one that it does not."""

from difflib import SequenceMatcher
from functools import cache
from typing import Any, Final, get_args

from pydantic import BaseModel

from policies.pipeline import Pipeline

_CLOSE: Final = 0.6
_MOST: Final = 3


def keys_at(path: tuple[str, ...]) -> list[str]:
    """The keys known in the mapping at `path`, a path without list indices; empty where there is none."""
    return [key.rpartition(".")[2] for key in _tree() if key.rpartition(".")[0] == ".".join(path)]


def nearest(path: tuple[str, ...], key: str) -> list[str]:
    """Known dotted keys nearest to the unknown `key` at `path`: of its own level unless others are nearer."""
    level = ".".join(path)
    scores = {known: _likeness(key[:64], known.rpartition(".")[2]) for known in _tree()}
    best = max(scores.values())
    if best < _CLOSE:
        return []
    found = [known for known, score in scores.items() if score == best]
    own = [known for known in found if known.rpartition(".")[0] == level]
    return (own or found)[:_MOST]


def _likeness(a: str, b: str) -> float:
    return SequenceMatcher(None, a.lower(), b).ratio()


@cache
def _tree() -> tuple[str, ...]:
    return tuple(_walk(Pipeline, ""))


def _walk(model: type[BaseModel], above: str) -> list[str]:
    found = []
    for name, info in model.model_fields.items():
        found.append(above + name)
        for nested in _models(info.annotation):
            found.extend(_walk(nested, f"{above}{name}."))
    return found


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]
