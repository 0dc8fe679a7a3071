"""What measured times depend on besides shapes: settings that a profile keeps and that a file must share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dflash_sim.timings_file import Profile
from policies.faults import Fault

_FROM_FILE: Final = {
    "model": ("model", "name_or_path"),
    "target_dtype": ("model", "dtype"),
    "attention": ("model", "attention"),
    "block_size": ("model", "block_size"),
    "drafter_layers": ("model", "drafter_layers"),
    "anchors": ("training", "anchors"),
    "loss": ("training", "loss"),
    "weights": ("training", "weights"),
    "pass_slots": ("training", "pass_slots"),
    "drafter_dtype": ("training", "dtype"),
    "target_gpus": ("topology", "target_gpus"),
}
"""Each setting's place in a pipeline file."""


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a resolved configuration says alone; what another version of it lacks is left out."""
    sections = {name: section for name, section in config.items() if isinstance(section, Mapping)}
    found = {name: sections.get(section, {}).get(key) for name, (section, key) in _FROM_FILE.items()}
    taps = sections.get("model", {}).get("taps")
    if (ahead := sections.get("dispatch", {}).get("prefetch")) is not None:
        found["prefetch"] = "on" if ahead else "off"  # a drafter is timed with copies beside it, or without
    found["taps"] = len(taps) if isinstance(taps, list) else sections.get("memory", {}).get("taps")
    return {key: value for key, value in found.items() if value is not None}


def setting_faults(profile: Profile, ours: Mapping[str, Any], path: object) -> list[Fault]:
    """A fault for every setting in which the profile at `path` differs from ours; what only one says is no fault."""
    faults = []
    for key, here in ours.items():
        there = profile.settings.get(key, here)
        if _comparable(key, there) != _comparable(key, here):
            rule = f"was measured with {key} {there}, and here it is {here}"
            faults.append(Fault("timings.file", str(path), rule, "profile again, or use the profile's setting"))
    return faults


def _comparable(key: str, value: Any) -> Any:
    """A model is known by the last part of its path: folders move."""
    return Path(value).name if key == "model" and isinstance(value, str) else value
