"""The target on GPUs: one, two that share its layers, and pinned host buffers; skipped where there are none."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from dflash_run.model.frozen import load_frozen  # noqa: E402
from dflash_run.model.target import TappedTarget  # noqa: E402
from policies.sections.training import Model  # noqa: E402
from tests.run.model.test_target import LENGTHS, random_model, tokens  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def test_states_reach_a_pinned_host_buffer_unchanged(tmp_path: Path) -> None:
    target = TappedTarget(random_model(tmp_path), [1, 3], ["cuda:0"])
    there = target.run(tokens(), LENGTHS)
    here = torch.full(there.shape, float("nan"), dtype=target.dtype, pin_memory=True)
    target.run(tokens(), LENGTHS, here)
    torch.cuda.synchronize()
    assert torch.equal(here, there.cpu())


@two
@pytest.mark.parametrize("random", [True, False])
def test_a_target_spread_over_two_gpus_gives_the_states_of_one(tmp_path: Path, random: bool) -> None:
    model = random_model(tmp_path)
    if not random:
        import transformers

        config = transformers.AutoConfig.from_pretrained(tmp_path)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
        model = Model(name_or_path=str(tmp_path))
    one = TappedTarget(model, [1, 3], ["cuda:1"], keep_last=True).run(tokens(), LENGTHS)
    spread = TappedTarget(model, [1, 3], ["cuda:0", "cuda:1"], keep_last=True)
    got = spread.run(tokens(), LENGTHS)
    assert got.device == torch.device("cuda:0") and torch.equal(got.cpu(), one.cpu())
    assert {str(each.device) for each in spread.module.parameters()} == {"cuda:0", "cuda:1"}
    embed = load_frozen(model, "cuda:1", torch.bfloat16).embed
    assert torch.equal(embed.cpu(), spread.module.embed_tokens.weight.cpu())
