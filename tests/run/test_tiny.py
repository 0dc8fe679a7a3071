"""The tiny training's target and data: made in seconds, the same every time, and fit for the pipeline beside them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import typer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import dflash_run.tiny.making as making  # noqa: E402
from dflash_run.data.bigram import bigram_accepted_length  # noqa: E402
from dflash_run.data.corpus import prepare_corpus  # noqa: E402
from dflash_run.data.planning import plan_for_training  # noqa: E402
from dflash_run.data.tokenizer import load_tokenizer, mask_token  # noqa: E402
from dflash_run.model.config import target_config  # noqa: E402
from dflash_run.model.target import TappedTarget  # noqa: E402
from dflash_run.tiny.baselines import ACCEPTED, LOSS  # noqa: E402
from dflash_run.tiny.demo import demo  # noqa: E402
from dflash_run.tiny.making import is_made, make_tiny  # noqa: E402
from dflash_run.tiny.sizes import SMALLEST, Sizes  # noqa: E402
from dflash_run.tiny.source import standard_library, windows  # noqa: E402
from dflash_run.training.preparation import prepare_training  # noqa: E402
from policies.faults import PipelineError  # noqa: E402
from policies.loading import load  # noqa: E402

PIPELINE = Path(__file__).parents[2] / "examples" / "tiny" / "pipeline.yaml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's folder with the smallest target and data in it."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("tiny")
    shutil.copy(PIPELINE, folder)
    make_tiny(folder / "made", SMALLEST, told=lambda text: None)
    assert is_made(folder / "made")
    return folder


def test_the_examples_pipeline_reads_what_was_made(made: Path) -> None:
    pipeline = load(made / "pipeline.yaml", ["model.taps=[0, 1]"])
    assert pipeline.data is not None
    config = target_config(pipeline.model)
    mask_token(pipeline.model, load_tokenizer(pipeline.model), config.vocab_size)
    corpus = prepare_corpus(pipeline.data, pipeline.model, vocab_size=config.vocab_size)
    assert (corpus.count, corpus.report.truncated, corpus.report.dropped) == (SMALLEST.samples, 0, 0)
    assert corpus.report.supervised == SMALLEST.samples * (SMALLEST.response + 1)  # and the end of each answer
    plan = plan_for_training(pipeline.data, corpus, pipeline.seed)
    batch = plan.batch(corpus, 0)
    target = TappedTarget(pipeline.model, pipeline.model.taps or ())
    states = target.run(torch.from_numpy(batch.input_ids), torch.from_numpy(batch.lengths))
    assert states.shape == (*batch.input_ids.shape, target.width) and states.dtype == torch.float32
    assert 0 <= bigram_accepted_length(corpus, plan.train, plan.held_out, pipeline.model.block_size) <= 7


def test_the_demo_trains_twice_and_sets_what_was_learnt_beside_a_bigram(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import dflash_run.training.command as command

    calls: list[list[str]] = []

    def train_file(file: Path, *, overrides: list[str], out: Path, **_: object) -> int:
        calls.append(overrides)
        figures = {ACCEPTED: 1.25 + len(calls), LOSS: 0.5}
        summary = {"training": {"figures": figures}, "batches": {"trained": 7, "planned": 7}}
        out.mkdir(parents=True)
        (out / "summary.json").write_text(json.dumps(summary))
        return 0

    monkeypatch.setattr(command, "train_file", train_file)
    monkeypatch.chdir(tmp_path)
    demo(made / "pipeline.yaml", overrides=["model.taps=[0, 1]"])
    assert [shape[:2] for shape in calls] == [[f"topology.targets={n}", f"topology.drafters={n}"] for n in (1, 2)]
    said = capsys.readouterr()
    rows = {line[:31].strip(): line.split() for line in said.out.splitlines()}
    assert rows["trained 1 + 1, 7 of 7 batches"][-2:] == ["2.25", "0.50"]
    assert rows["trained 2 + 2, 7 of 7 batches"][-2:] == ["3.25", "0.50"]
    assert float(rows["untrained drafter"][-2]) < 0.5 < 3 < float(rows["untrained drafter"][-1])
    assert 0 <= float(rows["bigram of the training samples"][-2]) <= 7
    assert "runs/tiny-2x2/summary.json" in said.out and "are there" in said.err


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Folders of the trainings that a demo asks for: each is prepared and held to be done."""
    import dflash_run.training.command as command

    folders: list[Path] = []

    def train_file(file: Path, *, overrides: list[str], out: Path, **_: object) -> int:
        prepare_training(load(file, overrides), gpus=0)
        figures = {ACCEPTED: 1.0, LOSS: 0.5}
        out.mkdir(parents=True, exist_ok=True)
        batches = {"trained": 7, "planned": 7}
        (out / "summary.json").write_text(json.dumps({"training": {"figures": figures}, "batches": batches}))
        folders.append(out)
        return 0

    monkeypatch.setattr(command, "train_file", train_file)
    monkeypatch.chdir(tmp_path)
    return folders


def test_the_smallest_demo_runs_in_a_fresh_clone_and_leaves_the_demo_alone(
    trained: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(shutil.copy(PIPELINE, tmp_path))
    demo(file, smallest=True)
    assert trained == [Path("runs/tiny-smallest-1x1"), Path("runs/tiny-smallest-2x2")]
    assert "taps [0, 1] instead of [0, 2]" in (said := capsys.readouterr()).err
    assert "runs/tiny-smallest-2x2/summary.json" in said.out
    made = []
    monkeypatch.setattr(making, "make_tiny", lambda folder, sizes, **_: made.append(sizes))
    with pytest.raises(PipelineError):  # nothing was made
        demo(file)
    demo(file, smallest=True)
    assert made == [Sizes()] and len(trained) == 4


def test_the_demo_takes_a_smaller_target_that_is_there_with_taps_of_its_own(
    made: Path, trained: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    demo(made / "pipeline.yaml")
    assert len(trained) == 2 and "It has 2 layers: taps [0, 1] instead of [0, 2]" in capsys.readouterr().err
    with pytest.raises(PipelineError, match="model.taps: got .0, 5."):
        demo(made / "pipeline.yaml", overrides=["model.taps=[0, 5]"])


def test_what_was_made_by_halves_is_made_anew(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "made", tmp_path / "made")
    shutil.rmtree(tmp_path / "made" / "target")
    assert not is_made(tmp_path / "made")


def test_the_demo_ends_where_a_training_does_not_end_well(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dflash_run.training.command as command

    monkeypatch.setattr(command, "train_file", lambda *_, **__: 130)
    with pytest.raises(typer.Exit) as ended:
        demo(made / "pipeline.yaml", overrides=["model.taps=[0, 1]"])
    assert ended.value.exit_code == 130


def test_the_same_seed_makes_the_same_data(made: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path, SMALLEST, told=lambda text: None)
    assert (tmp_path / "data.jsonl").read_bytes() == (made / "made" / "data.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "target"]


def test_the_source_is_plain_text_and_windows_are_cut_from_it() -> None:
    text = standard_library(5000)
    assert len(text) == 5000 and text.max() < 128 and b"  " not in text.tobytes()
    rows = windows(text, 3, 20, np.random.default_rng(0))
    assert all(row.astype(np.uint8).tobytes() in text.tobytes() for row in rows)
