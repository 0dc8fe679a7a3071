"""The target's shape, from its config.json alone: everything that can be refused is refused before weights are read."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from dflash_run.data.faults import FOREIGN_CODE, reason_of, refused
from dflash_run.model.shape import wrong_sizes
from policies.faults import ABSENT, PipelineError
from policies.sections.training import Model

if TYPE_CHECKING:
    from transformers import PretrainedConfig

KEY: Final = "model.name_or_path"
OFFLINE: Final = "give a folder, or download it once: hf download ID (a run never downloads)"


def unusable(model: Model, rule: str, remedy: str = "") -> PipelineError:
    """The error of a target that cannot be used."""
    value = ABSENT if model.name_or_path is None else model.name_or_path
    return refused(KEY, value, rule, remedy)


def target_config(model: Model) -> "PretrainedConfig":
    """The configuration of the target's language model; reads config.json only.

    Raises PipelineError where there is none, or it is not that of a causal language model that transformers knows,
    with sizes that a drafter can be made of.
    """
    if model.name_or_path is None:
        raise unusable(model, "must be given: the target to train for")
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(model.name_or_path)
    if folder.is_absolute() and not folder.is_dir():  # paths of the file are made absolute
        raise unusable(model, "must be a model's folder: there is none", OFFLINE)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise unusable(model, "must hold a config.json", "give a folder written by save_pretrained")
    try:
        config = AutoConfig.from_pretrained(
            model.name_or_path, revision=model.revision, local_files_only=True, trust_remote_code=False
        )
        text: PretrainedConfig = config.get_text_config()
    except Exception as error:  # whatever a broken file makes the library raise is the user's to repair
        if "trust_remote_code" in str(error):
            raise unusable(model, *FOREIGN_CODE) from None
        if folder.is_dir():
            rule = f"must hold a config.json that transformers can read ({reason_of(error)})"
            raise unusable(model, rule, "repair it, or give another target") from None
        rule = f"must be a model's folder, or an id that is in the local cache ({reason_of(error)})"
        raise unusable(model, rule, OFFLINE) from None
    if type(config) not in AutoModelForCausalLM._model_mapping:
        rule = f"must be a causal language model: its config.json says {config.model_type}"
        raise unusable(model, rule, "give a target that generates text")
    if faults := [*wrong_sizes(text)]:
        raise PipelineError(faults)
    return text


def check_taps(taps: tuple[int, ...], config: "PretrainedConfig") -> None:
    """Raise PipelineError where a tap is not a layer of the target."""
    layers = config.num_hidden_layers
    if taps[-1] >= layers:
        raise refused("model.taps", list(taps), f"must be layers of the target: 0 to {layers - 1}")
