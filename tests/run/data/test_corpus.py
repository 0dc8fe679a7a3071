"""The corpus: every format, what is cut and dropped, the cache, the faults, the split and the plan."""

import importlib
import json
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from dflash_run.data import cache
from dflash_run.data.bytelevel import EOS
from dflash_run.data.corpus import Corpus, prepare_corpus
from dflash_run.data.planning import plan_for_training
from policies.faults import PipelineError
from policies.sections.data import BatchSize, Data
from policies.sections.training import Model
from tests.run.data.test_tokenizer import MARKED, PLAIN, word_tokenizer

BYTES = Model(tokenizer="bytes")
TALK = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}


def write(path: Path, samples: Sequence[Mapping[str, Any] | str]) -> Path:
    """Samples as JSONL; texts are written as they are."""
    lines = [each if isinstance(each, str) else json.dumps(each) for each in samples]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def prepared(path: Path, **more: Any) -> Corpus:
    return prepare_corpus(Data(path=str(path), **more), BYTES)


def faults_of(path: Path, model: Model = BYTES, vocab_size: int | None = None, **more: Any) -> list[tuple[str, str]]:
    with pytest.raises(PipelineError) as caught:
        prepare_corpus(Data(path=str(path), **more), model, vocab_size=vocab_size)
    return [(fault.key, str(fault)) for fault in caught.value.faults]


def test_conversations_are_supervised_where_the_assistant_speaks(tmp_path: Path) -> None:
    corpus = prepared(write(tmp_path / "a.jsonl", [TALK, "", TALK]))
    assert corpus.count == 2 and corpus.report.supervised == 12
    assert corpus.input_ids(1)[corpus.loss_mask(1)].tolist() == [*b"hello", EOS]


def test_texts_are_supervised_everywhere(tmp_path: Path) -> None:
    corpus = prepared(write(tmp_path / "a.jsonl", [{"text": "hällo"}, {"text": "you"}]))
    assert bytes(corpus.input_ids(0).astype(np.uint8)).decode() == "hällo"
    assert corpus.report == cache.Report(read=2, kept=2, tokens=9, supervised=9)
    assert corpus.lengths.tolist() == [6, 3]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_tokens_keep_their_own_loss_masks_and_need_no_tokenizer(tmp_path: Path, kind: str) -> None:
    rows = [{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}, {"input_ids": [8, 9], "loss_mask": None}]
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        write(path, rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    corpus = prepare_corpus(Data(path=str(path)), Model())
    assert [corpus.input_ids(each).tolist() for each in range(2)] == [[5, 6, 7], [8, 9]]
    assert [corpus.loss_mask(each).tolist() for each in range(2)] == [[False, True, True], [True, True]]


def test_parquet_holds_conversations_and_texts_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([TALK, TALK]), path)
    assert prepared(path).report.supervised == 12


def test_samples_are_cut_and_those_without_a_supervised_pair_dropped_and_counted(tmp_path: Path) -> None:
    lone = {"input_ids": [1, 2, 3, 4], "loss_mask": [1, 0, 1, 0]}
    late = {"input_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 0, 0, 0, 1, 1]}
    good = {"input_ids": [1, 2, 3, 4, 5, 6]}
    path = write(tmp_path / "a.jsonl", [lone, late, good, {"input_ids": []}])
    report = prepared(path, max_length=5).report
    assert (report.read, report.kept, report.truncated, report.dropped, report.tokens) == (4, 1, 2, 3, 5)
    assert "3 of 4 dropped" in str(report)


def test_a_file_of_which_nothing_is_left_is_a_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]}])
    [(key, text)] = faults_of(path, max_length=2)
    assert key == "data.path" and "1 were cut at data.max_length: 2" in text


def test_bad_lines_are_all_counted_and_the_first_told_with_their_numbers(tmp_path: Path) -> None:
    bad = ["{", "[1]", '{"messages": []}', '{"messages": [{"role": "x", "content": "y"}]}', '{"text": "a"}']
    found = faults_of(write(tmp_path / "a.jsonl", [TALK, *bad, TALK]))
    assert [key for key, _ in found] == ["data.path"] * 5
    assert all(f"line {number} must" in text for number, (_, text) in enumerate(found, start=2))
    found = faults_of(write(tmp_path / "a.jsonl", [TALK, *["{"] * 30]))
    assert len(found) == 21 and "and 10 more samples" in found[-1][1]
    assert not list(tmp_path.glob("*.dflash-cache/*"))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"input_ids": [1, -2]}, "got -2"),
        ({"input_ids": [1, 2.5]}, "got 2.5"),
        ({"input_ids": [1, True]}, "got true"),
        ({"input_ids": "ab"}, "got 'ab'"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "as long as its `input_ids`: 2"),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, "got 2"),
        ({"input_ids": [1, 300]}, "0 to 299"),
    ],
)
def test_bad_tokens_are_refused_with_their_line(tmp_path: Path, row: dict[str, Any], told: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"input_ids": [1, 2]}, row])
    [(key, text)] = faults_of(path, vocab_size=300)
    assert key == "data.path" and "line 2" in text and told in text


@pytest.mark.parametrize("template", [None, PLAIN, MARKED], ids=["bytes", "plain", "marked"])
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"content": None}, "a text as content"),
        ({"content": 5}, "a text as content"),
        ({}, "a text as content"),
        ({"content": ["a"]}, "join its parts"),
        ({"content": "a\ud800b"}, "ud800 is half of one"),
        ({"content": "a", "name": ["\udfff"]}, "udfff is half of one"),
    ],
)
def test_messages_are_held_to_the_same_rules_under_every_tokenizer(
    tmp_path: Path, template: str | None, said: dict[str, Any], told: str
) -> None:
    model = BYTES
    if template is not None:
        word_tokenizer(template).save_pretrained(tmp_path / "tokenizer")
        model = Model(tokenizer=str(tmp_path / "tokenizer"))
    path = write(tmp_path / "a.jsonl", [TALK, {"messages": [*TALK["messages"], {"role": "assistant", **said}]}])
    [(key, text)] = faults_of(path, model)
    assert key == "data.path" and "line 2" in text and told in text


def test_a_text_with_half_a_character_is_told_with_its_line(tmp_path: Path) -> None:
    [(key, text)] = faults_of(write(tmp_path / "a.jsonl", [{"text": "ab"}, {"text": "a\udc00"}]))
    assert key == "data.path" and "line 2" in text and "correct the escape" in text


def test_rows_of_parquet_that_no_value_can_be_made_of_are_told_one_by_one(tmp_path: Path) -> None:
    texts = pyarrow.array([b"good", b"bad\xff", b"good", b"\xfe"], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    found = faults_of(tmp_path / "a.parquet")
    assert ["row 2" in found[0][1], "row 4" in found[1][1], len(found)] == [True, True, 2]
    times = pyarrow.array([2**62], pyarrow.timestamp("us"))
    pyarrow.parquet.write_table(pyarrow.table({"text": times}), tmp_path / "b.parquet")
    [(key, text)] = faults_of(tmp_path / "b.parquet")
    assert key == "data.path" and "row 1" in text and "correct or remove it" in text
    twice = pyarrow.Table.from_arrays([texts[:1], texts[:1]], names=["text", "text"])
    pyarrow.parquet.write_table(twice, tmp_path / "c.parquet")
    [(key, text)] = faults_of(tmp_path / "c.parquet")
    assert key == "data.path" and "each column once" in text


def test_ids_of_a_cached_corpus_are_held_against_the_vocabulary_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"input_ids": [1, 300]}])
    prepared(path)
    assert "got 300" in faults_of(path, vocab_size=300)[0][1]


def test_files_that_cannot_be_used_are_faults(tmp_path: Path) -> None:
    assert faults_of(tmp_path / "none.jsonl")[0][0] == "data.path"
    assert "it is empty" in faults_of(write(tmp_path / "e.jsonl", []))[0][1]
    assert "messages, input_ids, text" in faults_of(write(tmp_path / "k.jsonl", [{"prompt": "a"}]))[0][1]
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    assert "must be readable" in faults_of(tmp_path / "b.parquet")[0][1]
    (tmp_path / "u.jsonl").write_bytes(b'{"text": "\xff"}\n')
    assert "UTF-8" in faults_of(tmp_path / "u.jsonl", format="text")[0][1]
    assert faults_of(write(tmp_path / "t.jsonl", [TALK]), format="dataset")[0][0] == "data.format"
    with pytest.raises(PipelineError, match="data.path: must be given"):
        prepare_corpus(Data(batches=3), BYTES)


def test_a_dataset_folder_without_its_package_is_a_fault_with_a_remedy(tmp_path: Path) -> None:
    try:
        import datasets  # noqa: F401
    except ImportError:
        assert "pip install datasets" in faults_of(tmp_path)[0][1]
    else:
        pytest.skip("the package is there")


def test_conversations_for_a_tokenizer_without_a_template_are_a_fault(tmp_path: Path) -> None:
    word_tokenizer(None).save_pretrained(tmp_path / "tokenizer")
    model = Model(tokenizer=str(tmp_path / "tokenizer"))
    [(key, text)] = faults_of(write(tmp_path / "a.jsonl", [TALK]), model)
    assert key == "data.format" and "chat template" in text


def model_with(template: str, folder: Path) -> Model:
    word_tokenizer(template).save_pretrained(folder)
    return Model(tokenizer=str(folder))


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{% for m in messages %}{{ m.content ", "refused by the chat template ("),
        ("{{ raise_exception('not today') }}", "(not today)"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "yields no assistant tokens"),
        ("{{ messages[0].content }}{% generation %}{% endgeneration %}", "yields no assistant tokens"),
    ],
    ids=["syntax", "raises", "leaves out", "marks nothing"],
)
def test_a_chat_template_that_cannot_be_used_is_one_fault_of_the_tokenizer(
    tmp_path: Path, template: str, told: str
) -> None:
    path, model = write(tmp_path / "a.jsonl", [TALK] * 32), model_with(template, tmp_path / "tokenizer")
    for named in (model, Model(name_or_path=model.tokenizer)):
        [(key, text)] = faults_of(path, named)
        assert key == "model.tokenizer" and told in text and "correct the template" in text
        assert "the target's own" in text or named is model


def test_conversations_that_a_template_refuses_with_reason_are_the_datas_fault(tmp_path: Path) -> None:
    strict = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}" + PLAIN
    model = model_with(strict, tmp_path / "tokenizer")
    good = {"messages": [{"role": "system", "content": "be brief"}, *TALK["messages"]]}
    for samples in ([TALK, good], [good, TALK]):
        [(key, text)] = faults_of(write(tmp_path / "a.jsonl", samples), model)
        assert key == "data.path" and "system first" in text


def test_lines_before_the_one_that_shows_the_template_broken_are_told_with_it(tmp_path: Path) -> None:
    model = model_with("{% if %}", tmp_path / "tokenizer")
    found = faults_of(write(tmp_path / "a.jsonl", ["{", TALK, TALK]), model, format="conversations")
    assert [key for key, _ in found] == ["data.path", "model.tokenizer"]


@pytest.mark.parametrize("name", ["X.PARQUET", "x.data"])
def test_parquet_is_known_whatever_its_file_is_called(tmp_path: Path, name: str) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([TALK, TALK]), tmp_path / name)
    assert prepared(tmp_path / name).report.supervised == 12


@pytest.mark.parametrize("kind", ["gzip", "bz2", "lzma"])
def test_a_compressed_file_is_called_one_and_is_to_be_unpacked(tmp_path: Path, kind: str) -> None:
    plain = write(tmp_path / "a.jsonl", [TALK]).read_bytes()
    packed = tmp_path / "a.jsonl.packed"
    packed.write_bytes(importlib.import_module(kind).compress(plain))
    for named in (None, "conversations"):
        [(key, text)] = faults_of(packed, format=named)
        assert key == "data.path" and "must not be compressed: it is, with" in text and text.endswith("unpack it")


def test_a_cache_is_reused_until_the_file_or_the_limit_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "hello"}])
    first = prepared(path)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_fill", None)
        assert prepared(path).content_hash == first.content_hash
    assert prepared(path, max_length=3).folder != first.folder
    write(path, [{"text": "other"}])
    assert prepared(path).content_hash != first.content_hash
    assert Corpus.open(first.folder).input_ids(0).tolist() == [*b"hello"]


@pytest.mark.parametrize("name", ["tokens.bin", "loss_mask.bin", "offsets.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, name: str, damage: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "hello"}, {"text": "hello you"}])
    whole = prepared(path)
    file = whole.folder / name
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-1] if damage == "cut" else content[:-3] + b"???")
    again = prepared(path)
    assert (again.folder, again.content_hash) == (whole.folder, whole.content_hash)
    assert file.read_bytes() == content
    assert os.listdir(whole.folder.parent) == [whole.folder.name]


@pytest.mark.parametrize("damage", ["report", "deep", "nowhere", "numbers"])
def test_a_cache_that_lies_or_leads_nowhere_is_made_anew(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "hello"}, {"text": "hello you"}])
    whole = prepared(path)
    said = whole.folder / "meta.json"
    if damage == "report":  # what people are told counts as much as what is trained
        said.write_text(said.read_text().replace('"truncated": 0', '"truncated": 9'))
    elif damage == "deep":
        said.write_text("[" * 100_000)
    elif damage == "numbers":
        np.savez(whole.folder / "offsets", a=np.zeros(3))
        (whole.folder / "offsets.npz").rename(whole.folder / "offsets.npy")
    else:
        shutil.rmtree(whole.folder)
        whole.folder.symlink_to("/nowhere")
    again = prepared(path)
    assert (again.folder, again.content_hash, again.report) == (whole.folder, whole.content_hash, whole.report)
    assert not again.folder.is_symlink() and os.listdir(again.folder.parent) == [again.folder.name]


def test_two_makers_of_one_cache_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": f"hello {each}"} for each in range(200)])
    found: list[str] = []
    makers = [threading.Thread(target=lambda: found.append(prepared(path).content_hash)) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(found) == 4 and len(set(found)) == 1
    assert len(os.listdir(tmp_path / "a.jsonl.dflash-cache")) == 1


def test_a_cache_folder_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "hello"}])
    (tmp_path / "file").write_text("")
    [(key, text)] = faults_of(path, cache=str(tmp_path / "file"))
    assert key == "data.cache" and "set data.cache" in text
    assert prepared(path, cache=str(tmp_path / "there")).folder.parent == tmp_path / "there"


def test_what_was_left_behind_long_ago_is_swept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "hello"}])
    left = tmp_path / "a.jsonl.dflash-cache" / ".making-old"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    assert prepared(path).count == 1 and not left.exists()


def test_the_split_keeps_every_sample_once(tmp_path: Path) -> None:
    corpus = prepared(write(tmp_path / "a.jsonl", [{"text": f"hello {each}"} for each in range(40)]))
    train, held_out = corpus.split(0.25, seed=1)
    assert sorted([*train, *held_out]) == list(range(40)) and len(held_out) == 10
    assert np.array_equal(corpus.split(0.25, seed=1)[1], held_out)
    assert not np.array_equal(corpus.split(0.25, seed=2)[1], held_out)
    assert len(corpus.split(0.001, seed=1)[1]) == 1 and len(corpus.split(0.999, seed=1)[0]) == 1
    assert len(corpus.split(0.0, seed=1)[1]) == 0


def test_samples_are_padded_on_the_right(tmp_path: Path) -> None:
    corpus = prepared(write(tmp_path / "a.jsonl", [{"text": "abc"}, {"text": "de"}]))
    batch = corpus.pad(np.array([1, 0]))
    assert batch.input_ids.tolist() == [[*b"de", 0], [*b"abc"]]
    assert batch.loss_mask.tolist() == [[True, True, False], [True] * 3]
    assert batch.lengths.tolist() == [2, 3] and batch.input_ids.dtype == np.int64


def test_the_plan_holds_every_training_sample_once_an_epoch_and_no_held_out_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "x" * (2 + each)} for each in range(30)])
    data = Data(path=str(path), held_out=0.2, epochs=2, batch=BatchSize(max_tokens=64), buckets=(8, 16))
    corpus = prepare_corpus(data, BYTES)
    plan = plan_for_training(data, corpus, seed=3)
    seen = np.concatenate([plan.samples_of(batch) for batch in range(plan.batches.count)])
    assert sorted(seen) == sorted([*plan.train, *plan.train]) and not set(seen) & set(plan.held_out)
    sizes = [len(plan.batch(corpus, each).lengths) for each in range(plan.batches.count)]
    assert sizes == plan.batches.samples.tolist()
    assert plan.batches.content_hash == plan_for_training(data, corpus, seed=3).batches.content_hash
