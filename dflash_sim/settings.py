"""What measured times depend on besides shapes: settings that a profile keeps and that a file must share."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from dflash_sim.timings_file import ROLES, Profile
from policies.faults import Fault, shown
from policies.sections.topology import Topology

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

WORKERS: Final = "workers"
"""The setting that says where workers are, or that there were none."""
PROCESSES: Final = "processes"
"""Where a training's workers are."""
THREADS: Final = "threads"
"""Where those of a rehearsal that computes are. A profile goes on with the parts of the GPU, which no trace says."""
ASLEEP: Final = "rehearsed without computing"
SIMULATED: Final = "simulated"


TARGETS: Final = "targets"
DRAFTERS: Final = "drafters"
SHARED_GPUS: Final = "shared_gpus"
TOPOLOGY: Final = (TARGETS, DRAFTERS, SHARED_GPUS)
"""Settings of timings whose samples hold the interference of a run: of how many workers, and how they shared GPUs.

They are in no profile that tells interference apart, which predicts any topology.
"""


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a resolved configuration says alone; what another version of it lacks is left out."""
    sections = {name: section for name, section in config.items() if isinstance(section, Mapping)}
    found = {name: sections.get(section, {}).get(key) for name, (section, key) in _FROM_FILE.items()}
    taps = sections.get("model", {}).get("taps")
    if (ahead := sections.get("dispatch", {}).get("prefetch")) is not None:
        found["prefetch"] = "on" if ahead else "off"  # a drafter is timed with copies beside it, or without
    found["taps"] = len(taps) if isinstance(taps, list) else sections.get("memory", {}).get("taps")
    return {key: value for key, value in found.items() if value is not None}


def computed(kind: str, config: Mapping[str, Any]) -> bool:
    """Whether the workers of a recorded run really computed: a training's, and those of a rehearsal with real kernels.

    Only they read samples; a rehearsal that sleeps has lengths or batches to sleep for.
    """
    return kind == "training" or (kind == "rehearsal" and _at(config, "data", "path") is not None)


def settings_of_run(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the header of a trace says: the configuration's, where workers were, and on what they ran.

    Left out is what only the machine knew: threads, devices that the file did not name, the model's other sizes.
    """
    if _at(config, "model", "name_or_path") is not None:
        found = settings_of(config)
    else:  # without a model the rest are the file's defaults and say nothing
        found = {"taps": _at(config, "memory", "taps")}
    if not computed(kind, config):
        place = SIMULATED if kind == "simulation" else ASLEEP
    else:
        place = PROCESSES if kind == "training" else THREADS
        found |= {key: _at(config, "memory", key) for key in ("staging", "hidden_size")}
        found |= {f"{role}_device": _kinds(_at(config, "topology", "devices", f"{role}s")) for role in ROLES}
        found |= _topology(kind, config)
    return {key: value for key, value in (found | {WORKERS: place}).items() if value is not None}


def _topology(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """How many workers there were, and which shared a GPU, where that follows from the file."""
    counts = {TARGETS: _at(config, "topology", TARGETS), DRAFTERS: _at(config, "topology", DRAFTERS)}
    named = [_at(config, "topology", "devices", f"{role}s") for role in ROLES]
    if kind == "training" and named == [None, None]:
        return counts | {SHARED_GPUS: []}  # each then has a GPU of its own, or there was none
    try:
        topology = Topology.model_validate(_at(config, "topology"))
    except ValueError:  # another version's
        return counts
    targets, drafters = topology.spread("target"), topology.spread("drafter")
    return counts if targets is None or drafters is None else counts | {SHARED_GPUS: shared_gpus(targets, drafters)}


def shared_gpus(targets: Iterable[Iterable[str]], drafters: Iterable[Iterable[str]]) -> list[str]:
    """`2 + 1` (targets, drafters) for each GPU that several workers are on, whichever it is; each has its devices."""
    on: dict[str, list[int]] = {}
    for role, workers in enumerate((targets, drafters)):
        for name in (name for names in workers for name in names if name.startswith("cuda")):
            on.setdefault(name, [0, 0])[role] += 1
    return [f"{t} + {d}" for t, d in sorted((t, d) for t, d in on.values() if t + d > 1)]


def _at(config: Any, *keys: str) -> Any:
    """What stands at the dotted key of a configuration; None where nothing does."""
    for key in keys:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _kinds(named: Any) -> str | None:
    """The kinds of the devices that a file names, one for all or a list; None where it names none."""
    names = [named] if isinstance(named, str) else named
    return kinds_of(names) if isinstance(names, list) and names else None


def kinds_of(devices: Iterable[str]) -> str:
    """`cpu`, `cuda`, or both."""
    return "+".join(sorted({name.partition(":")[0] for name in devices}))


def setting_faults(profile: Profile, ours: Mapping[str, Any], path: object) -> list[Fault]:
    """A fault for every setting in which the profile at `path` differs from ours; what only one says is no fault."""
    faults = []
    for key, here in ours.items():
        there = profile.settings.get(key)
        if there is not None and not agree(key, there, here):
            rule = f"was measured with {key} {shown(there)}, and here it is {shown(here)}"
            faults.append(Fault("timings.file", str(path), rule, "profile again, or use the profile's setting"))
    return faults


def unknown_settings(profile: Profile, ours: Iterable[str]) -> list[str]:
    """Those of ours that the profile does not say, and that therefore were not compared."""
    return [key for key in ours if profile.settings.get(key) is None]


def agree(key: str, one: Any, other: Any) -> bool:
    """Whether two values of a setting are the same.

    A model is known by the last part of its path: folders move. Threads of which only that is known are any threads.
    """
    if key == WORKERS and THREADS in (one, other):
        return str(one).startswith(THREADS) and str(other).startswith(THREADS)
    if key == "model" and isinstance(one, str) and isinstance(other, str):
        return Path(one).name == Path(other).name
    return bool(one == other)


def fuller(key: str, one: Any, other: Any) -> Any:
    """Of two values that agree the one that says more; else the first."""
    return other if (key, one) == (WORKERS, THREADS) else one
