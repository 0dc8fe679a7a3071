"""What `dflash-run train` cannot use ends with status 2 and a line a fault on stderr, before a model is loaded."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import dflash_run.training.command as command  # noqa: E402
import dflash_run.training.preparation as preparation  # noqa: E402
import dflash_run.training.train as training  # noqa: E402
from dflash_run.cli import app  # noqa: E402
from dflash_run.model.config import target_config  # noqa: E402
from dflash_run.model.frozen import load_frozen  # noqa: E402
from dflash_run.model.shape import DrafterShape  # noqa: E402
from dflash_run.training.checkpoint import (  # noqa: E402
    METRIC,
    NAME,
    Checkpoint,
    Checkpoints,
    complete_in,
    read,
    set_aside,
)
from dflash_run.training.preparation import prepare_training  # noqa: E402
from dflash_run.training.replica import OPTIMIZER, WEIGHTS, Replica  # noqa: E402
from dflash_sim.cli import guarded  # noqa: E402
from dflash_sim.folders import claimed  # noqa: E402
from policies.faults import PipelineError  # noqa: E402
from policies.loading import resolved  # noqa: E402
from tests.run.training.cases import training_file, training_pipeline  # noqa: E402

Refused = Callable[..., list[str]]


class _Started(Exception):
    """A training would begin."""


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, data, the pipeline `file.json`, and a checkpoint of two trained batches."""
    folder = tmp_path_factory.mktemp("case")
    (folder / "file.json").write_text(json.dumps(training_file(folder)))
    prepared = prepare_training(training_pipeline(folder), gpus=0)
    model, training = prepared.pipeline.model, prepared.pipeline.training
    shape = DrafterShape.of(target_config(model), model, prepared.mask_token_id)
    frozen = load_frozen(model, "cpu", torch.float32)
    replica = Replica(shape, training=training, embed=frozen.embed, head=frozen.head, seed=0)
    checkpoints = Checkpoints(folder / "run", 3)
    making = checkpoints.begin(2)
    replica.save(Path(making))
    said = Checkpoint(
        step=2,
        trained=((0, 1),),
        planned=prepared.plan.batches.count,
        plan_hash=prepared.plan.batches.content_hash,
        corpus_hash=prepared.corpus.content_hash,
        config=resolved(prepared.pipeline),
        versions={},
    )
    checkpoints.complete(making, said)
    return folder


@pytest.fixture
def refused(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Calls the command; returns the lines of stderr, which are all that it may say."""

    def start(*_: object, **__: object) -> None:
        raise _Started

    monkeypatch.setattr(training, "train", start)

    def call(*arguments: str, file: str | None = "file.json", gpus: int = 0) -> list[str]:
        monkeypatch.setattr(command, "_gpus", lambda: gpus)
        given = [] if file is None else [str(case / file)]
        out = [] if "-o" in arguments else ["-o", str(tmp_path / "out")]
        assert guarded(app, ["train", *given, *arguments, *out, "--json"]) == 2
        said = capfd.readouterr()
        assert said.out == "" and said.err.endswith("\n") and "Traceback" not in said.err
        return said.err.splitlines()

    return call


def _only(lines: list[str], *parts: str) -> None:
    assert len(lines) == 1, lines
    assert all(part in lines[0] for part in parts), lines[0]


def _lines(path: Path, *samples: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return str(path)


def test_what_can_be_used_starts(refused: Refused, case: Path) -> None:
    with pytest.raises(_Started):
        refused()
    with pytest.raises(_Started):
        refused("--resume", str(case / "run"), file=None)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (["model.name_or_path=./nothing"], ("model.name_or_path", "nothing", "give a folder")),
        (["model.name_or_path=Qwen/Nope-1B"], ("model.name_or_path", "Qwen/Nope-1B", "hf download")),
        (["model.random_weights=false"], ("model.name_or_path", "no model.safetensors")),
        (["model.tokenizer=./nothing"], ("model.tokenizer", "nothing")),
        (["model.taps=[1, 99]"], ("model.taps", "[1, 99]", "0 to 3")),
        (["model.warm_start=./nothing"], ("model.warm_start", "nothing")),
        (["data.path=nothing.jsonl"], ("data.path", "nothing.jsonl")),
        (["data.cache=file.json"], ("data.cache", "file.json", "must be a folder that can be written")),
        (["memory.host_limit=1KB"], ("memory.host_limit", "lower dispatch.depth")),
        (["training.sync=none", "training.save_every=5"], ("training.save_every", "5", "sync: step or pooled")),
        (["topology.devices.targets=cuda:0"], ("topology.devices.targets", "cuda:0", "none")),
    ],
)
def test_a_key_that_cannot_be_used_is_named_with_its_remedy(
    refused: Refused, changes: list[str], parts: tuple[str, ...]
) -> None:
    _only(refused(*(each for change in changes for each in ("--set", change))), *parts)


def test_a_missing_target_is_told_once_though_its_tokenizer_is_missing_too(refused: Refused, case: Path) -> None:
    file = training_file(case)
    file["model"] = {"name_or_path": "./nothing"}
    (case / "its-own.json").write_text(json.dumps(file))
    _only(refused(file="its-own.json"), "model.name_or_path")


def test_every_fault_has_its_line_in_one_pass(refused: Refused) -> None:
    changes = ("model.taps=[9]", "data.path=nothing.jsonl", "training.sync=none", "training.save_every=5")
    lines = refused(*(each for change in changes for each in ("--set", change)))
    assert sorted(line.partition(":")[0] for line in lines) == ["data.path", "model.taps", "training.save_every"]


def _keys(lines: list[str]) -> list[str]:
    return sorted(line.partition(":")[0] for line in lines)


def _set(*changes: str) -> list[str]:
    return [each for change in changes for each in ("--set", change)]


def test_what_the_command_line_names_is_judged_with_the_file(refused: Refused, case: Path) -> None:
    nothing, file = str(case / "nothing"), str(case / "file.json")
    given = ("-o", file, "--predict", nothing, "--resume", nothing)
    changes = ("data.path=nothing.jsonl", "dispatch.policy=nowhere:Mine", "model.taps=[9]", "model.mask_token_id=300")
    expected = ["--resume", "-o", "data.path", "dispatch.policy", "model.mask_token_id", "model.taps", nothing]
    assert _keys(refused(*given, *_set(*changes))) == sorted(expected)


def test_a_policy_that_is_nowhere_is_told_before_samples_are_tokenised(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    real = preparation.load_policy
    monkeypatch.setattr(preparation, "load_policy", lambda name: (said.append("policy"), real(name))[1])

    def tokenise(*_: object, **__: object) -> None:
        said.append("corpus")
        raise PipelineError([])

    monkeypatch.setattr(preparation, "prepare_corpus", tokenise)
    _only(refused("--set", "dispatch.policy=nowhere:Mine"), "dispatch.policy", "nowhere", "PYTHONPATH")
    assert said == ["policy", "corpus"]


def test_memory_limits_and_a_checkpoint_of_another_plan_are_told_together(refused: Refused, case: Path) -> None:
    changes = _set("memory.host_limit=1KB", "seed=3", "training.sync=none", "training.save_every=5")
    assert _keys(refused("--resume", str(case / "run"), *changes)) == ["--resume", "memory", "training.save_every"]


def test_data_are_judged_though_the_tokenizer_is_missing(refused: Refused, tmp_path: Path) -> None:
    changes = ["model.tokenizer=./nothing", "model.mask_token_id=300", "data.path=nothing.jsonl"]
    assert _keys(refused(*_set(*changes))) == ["data.path", "model.mask_token_id", "model.tokenizer"]
    bad = _lines(tmp_path / "bad.jsonl", {"input_ids": [1, 2]}, {"input_ids": [-1]})
    assert _keys(refused(*_set("model.tokenizer=./nothing", f"data.path={bad}"))) == ["data.path", "model.tokenizer"]


def test_a_refused_training_leaves_no_folder_behind(refused: Refused, tmp_path: Path) -> None:
    refused("-o", str(tmp_path / "new" / "run"), "--set", "data.path=nothing.jsonl")
    assert not (tmp_path / "new").exists()


def test_more_workers_than_gpus_are_refused_unless_devices_are_named(refused: Refused, case: Path) -> None:
    (case / "two.json").write_text(json.dumps(training_file(case) | {"topology": {"targets": 2, "drafters": 2}}))
    _only(refused(file="two.json", gpus=2), "topology", "2 GPUs", "topology.devices")
    with pytest.raises(_Started):
        refused("--set", "topology.devices.targets=cuda:0", "--set", "topology.devices.drafters=[cuda:0, cuda:1]",
                file="two.json", gpus=2)  # fmt: skip


def test_data_without_anything_to_learn_are_refused(refused: Refused, tmp_path: Path) -> None:
    def data(path: str) -> list[str]:
        return refused("--set", f"data.path={path}")

    _only(data(_lines(tmp_path / "empty.jsonl")), "data.path", "it is empty")
    unsupervised = {"input_ids": [1, 2, 3], "loss_mask": [0, 0, 0]}
    _only(data(_lines(tmp_path / "unsupervised.jsonl", unsupervised)), "data.path", "two supervised tokens in a row")
    asked = {"messages": [{"role": "user", "content": "why"}]}
    _only(data(_lines(tmp_path / "asked.jsonl", asked)), "data.path", "two supervised tokens in a row")
    words = {"input_ids": [1, "two"]}
    lines = data(_lines(tmp_path / "wrong.jsonl", {"input_ids": [1, 2, 3]}, words, {"input_ids": 4}))
    assert [part in line for part, line in zip(("line 2", "line 3"), lines, strict=True)] == [True, True]


def test_conversations_need_a_chat_template(refused: Refused, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", mask_token="?").save_pretrained(tmp_path / "words")
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a a a"}]
    data = _lines(tmp_path / "data.jsonl", {"messages": said})
    lines = refused("--set", f"data.path={data}", "--set", f"model.tokenizer={tmp_path / 'words'}")
    _only(lines, "chat template", "set model.tokenizer")


@pytest.mark.parametrize("tracker", ["wandb", "tensorboard"])
def test_a_tracker_whose_package_is_missing_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    monkeypatch.setattr(preparation, "find_spec", lambda name: None)
    _only(refused("--set", f"training.tracker={tracker}"), "training.tracker", f"pip install {tracker}")


def test_an_output_folder_that_is_a_file_is_refused(refused: Refused, case: Path) -> None:
    _only(refused("-o", str(case / "file.json")), "-o", "file.json", "folder")


def test_a_prediction_without_timings_is_refused(refused: Refused, case: Path) -> None:
    _only(refused("--predict", str(case / "nothing.json")), "nothing.json")
    assert all("file.json" in line for line in refused("--predict", str(case / "file.json")))


def test_a_training_needs_a_file_or_a_checkpoint(refused: Refused, case: Path) -> None:
    _only(refused(file=None), "FILE", "--resume")
    _only(refused("--resume", str(case / "nothing")), "--resume", "nothing", "checkpoints/step-")
    _only(refused(file="nothing.yaml"), "nothing.yaml")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("seed=3", "--resume"),
        ("data.epochs=2", "--resume"),
        ("data.max_length=5", "--resume"),
        ("model.drafter_layers=2", "model.drafter_layers"),
        ("model.taps=[0]", "model.taps"),
        ("model.block_size=8", "model.block_size"),
    ],
)
def test_a_checkpoint_of_another_plan_or_drafter_is_refused(
    refused: Refused, case: Path, change: str, key: str
) -> None:
    _only(refused("--resume", str(case / "run"), "--set", change), key, "checkpoint's")


@pytest.mark.parametrize("file", [NAME, WEIGHTS, OPTIMIZER])
@pytest.mark.parametrize("damage", ["cut", "gone", "text", "deep"])
def test_a_damaged_checkpoint_is_refused(
    refused: Refused, case: Path, tmp_path: Path, file: str, damage: str
) -> None:
    shutil.copytree(case / "run", tmp_path / "run")
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    path = checkpoint / file
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif damage in ("text", "deep"):
        path.write_text("[]" if damage == "text" else "[" * 100_000)
    else:
        path.unlink()
    _only(refused("--resume", str(checkpoint)), "--resume", "must be")


_UNSOUND = {
    "step": -1,
    "trained": [[0, 1], [1, 2]],
    "planned": 3.5,
    "plan_hash": 7,
    "config": [],
    "versions": {"torch": 2},
    "held_out": {"held_out_loss": "low"},
    "lineage": [5],
    "random": {"seed": None},
    "shape": "wide",
    "more": 1,
}


def _edited(case: Path, folder: Path, changes: dict[str, Any]) -> Path:
    """A copy of the checkpoint whose file says something else."""
    shutil.copytree(case / "run", folder)
    (checkpoint,) = (folder / "checkpoints").glob("step-*")
    content = json.loads((checkpoint / NAME).read_text()) | changes
    (checkpoint / NAME).write_text(json.dumps(content))
    return checkpoint


def test_a_checkpoints_file_is_told_all_that_is_wrong_with_it(refused: Refused, case: Path, tmp_path: Path) -> None:
    lines = refused("--resume", str(_edited(case, tmp_path / "{run}", _UNSOUND)))
    assert len(lines) == len(_UNSOUND)
    for key in _UNSOUND:
        assert sum(f"`{key}`" in line and "--resume" in line and "take an earlier one" in line for line in lines) == 1


@pytest.mark.parametrize(
    "trained",
    [
        [],
        {"0": 1},
        *([pair] for pair in ([0, 12], [0, 10**15], [3, 2], [-1, 2], [True, 2], ["0", 2], [2])),
        [[4, 5], [0, 1]],
    ],
)
def test_batches_that_no_plan_has_are_refused_before_they_are_counted(
    refused: Refused, case: Path, tmp_path: Path, trained: object
) -> None:
    _only(refused("--resume", str(_edited(case, tmp_path / "run", {"trained": trained}))), "--resume", "`trained`")


def test_a_checkpoint_that_counts_other_batches_than_the_plan_is_refused(
    refused: Refused, case: Path, tmp_path: Path
) -> None:
    changes = {"planned": 10**15, "trained": [[0, 10**14]]}
    _only(refused("--resume", str(_edited(case, tmp_path / "run", changes))), "--resume", "planned", "12 batches")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": true}', '{"format": 1e999}', '{"format": 1, "step": ' + "9" * 9999 + "}"]
)
def test_a_checkpoints_file_that_cannot_be_read_is_refused(
    refused: Refused, case: Path, tmp_path: Path, text: str
) -> None:
    checkpoint = _edited(case, tmp_path / "{run}", {})
    (checkpoint / NAME).write_text(text)
    _only(refused("--resume", str(checkpoint)), "--resume", "must be a whole checkpoint")


@pytest.mark.parametrize("says", [True, False])
def test_a_target_of_other_depth_than_the_checkpoints_is_refused(
    refused: Refused, case: Path, tmp_path: Path, says: bool
) -> None:
    """By the sizes that a checkpoint says, or by the target that its file names."""
    shutil.copytree(case / "target", tmp_path / "deeper")
    config = json.loads((case / "target" / "config.json").read_text())
    shape = {"target_layers": config["num_hidden_layers"], "layers": 1} if says else {}
    config["num_hidden_layers"] += 2
    if "layer_types" in config:
        config["layer_types"] += config["layer_types"][:2]
    (tmp_path / "deeper" / "config.json").write_text(json.dumps(config))
    checkpoint = _edited(case, tmp_path / "run", {"shape": shape})
    lines = refused("--resume", str(checkpoint), "--set", f"model.name_or_path={tmp_path / 'deeper'}")
    _only(lines, "model.name_or_path", "target_layers 4, not 6")


def test_a_resumed_training_does_not_write_into_the_folder_that_it_goes_on_from(
    refused: Refused, case: Path, tmp_path: Path
) -> None:
    shutil.copytree(case / "run", tmp_path / "run")
    for resume in ("run", "run/checkpoints", "run/checkpoints/step-00000002"):
        lines = refused("--resume", str(tmp_path / resume), "-o", str(tmp_path / "run"))
        _only(lines, "-o", "another folder", "leave -o out")
    assert complete_in(tmp_path / "run" / "checkpoints")
    with pytest.raises(_Started):  # another one's are set aside as those of any earlier training
        refused("--resume", str(case / "run"), "-o", str(tmp_path / "run"))
    assert complete_in(tmp_path / "run" / "checkpoints-1") and not (tmp_path / "run" / "checkpoints").exists()


def test_a_folder_in_which_another_run_is_at_work_is_left_as_it_is(
    refused: Refused, case: Path, tmp_path: Path
) -> None:
    shutil.copytree(case / "run", tmp_path / "run")
    with claimed(tmp_path / "run"):
        before = sorted(tmp_path.rglob("*"))
        _only(refused("-o", str(tmp_path / "run")), "-o", "no other run")
        assert sorted(tmp_path.rglob("*")) == before


def test_a_finished_training_has_nothing_left_and_leaves_no_folder(
    case: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint = _edited(case, tmp_path / "run", {"trained": [[0, 11]]})
    given = ["train", "--resume", str(checkpoint), "-o", str(tmp_path / "out"), "--json"]
    assert guarded(app, given) == 0 and not (tmp_path / "out").exists()
    said = capfd.readouterr()
    assert "nothing is left to train" in said.err and json.loads(said.out)["training"]["trained_before"] == 12


def test_data_of_which_nothing_is_left_to_train_on_are_refused(refused: Refused, tmp_path: Path) -> None:
    data = _lines(tmp_path / "one.jsonl", {"input_ids": [1, 2, 3, 4]})
    for share in ("0.6", "0.1"):
        _only(refused("--set", f"data.path={data}", "--set", f"data.held_out={share}"), "data.held_out", "lower it")


def test_an_output_folder_that_is_named_nothing_or_cannot_be_written_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    _only(refused("-o", ""), "-o", "must name a folder")
    _only(refused("-o", "/proc/nothing"), "-o", "/proc/nothing", "can be written", "give another")
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "out")
    _only(refused(), "-o", "can be written", "give another")


def test_only_checkpoints_of_its_own_run_are_ever_removed(case: Path, tmp_path: Path) -> None:
    shutil.copytree(case / "run", tmp_path / "run")
    (there,) = complete_in(tmp_path / "run" / "checkpoints")
    kept, said = Checkpoints(tmp_path / "run", 1), read(there)
    for step in (1, 4, 2, 5):
        making = Path(kept.begin(step))
        making.mkdir()
        if step == 2:
            with pytest.raises(FileExistsError, match="of another training"):
                kept.complete(str(making), replace(said, step=step))
            kept.forget(str(making))
        else:
            kept.complete(str(making), replace(said, step=step, held_out={METRIC: float("nan")}))
    names = [path.name for path in complete_in(tmp_path / "run" / "checkpoints")]
    assert names == ["step-00000002", "step-00000005"] and read(there) == said


def test_checkpoints_of_an_earlier_training_are_set_aside(case: Path, tmp_path: Path) -> None:
    shutil.copytree(case / "run", tmp_path / "run")
    assert set_aside(tmp_path / "run") == tmp_path / "run" / "checkpoints-1"
    assert set_aside(tmp_path / "run") is None
    assert [path.name for path in (tmp_path / "run" / "checkpoints-1").glob("step-*")] == ["step-00000002"]


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors"])
def test_a_checkpoint_with_numbers_that_are_not_finite_is_refused(
    refused: Refused, case: Path, tmp_path: Path, file: str
) -> None:
    from safetensors.torch import load_file, save_file

    checkpoint = _edited(case, tmp_path / "run", {})
    tensors = load_file(checkpoint / file)
    next(iter(tensors.values())).view(-1)[0] = float("nan")
    save_file(tensors, checkpoint / file)
    _only(refused("--resume", str(checkpoint)), "--resume", "finite numbers", "take an earlier one")


@pytest.mark.parametrize(
    ("change", "key", "told"),
    [
        ("training.evaluate_every=2", "training.evaluate_every", "data.held_out is 0"),
        ("topology.target_gpus=2", "topology.target_gpus", "on the CPU"),
        ("model.block_size=90000000", "topology", "GB of free memory"),
    ],
)
def test_what_would_be_ignored_or_cannot_fit_is_refused(refused: Refused, change: str, key: str, told: str) -> None:
    _only(refused("--set", change), key, told)


def test_a_resumed_training_needs_no_warm_start_any_more(case: Path, tmp_path: Path) -> None:
    pipeline = training_pipeline(case, model={"warm_start": str(tmp_path / "gone")})
    prepare_training(pipeline, gpus=0, resume=case / "run")


def test_a_resumed_training_goes_beside_the_one_that_it_goes_on_from(case: Path, tmp_path: Path) -> None:
    _edited(case, tmp_path / "run", {})
    for resume in (tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-00000002"):
        assert command._fresh(Path("runs/other"), resume) == tmp_path / "run-2"
    _edited(case, tmp_path / "run-2", {})
    assert command._fresh(Path("runs/other"), tmp_path / "run-2") == tmp_path / "run-3"
    _edited(case, tmp_path / "exp-7", {})
    assert command._fresh(Path("runs/other"), tmp_path / "exp-7") == tmp_path / "exp-7-2"
    assert command._fresh(Path("runs/other"), None) == Path("runs/other")
