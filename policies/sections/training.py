"""What is trained and how: the sections `training` and `model`."""

from typing import Annotated, Literal

from policies.sections.fields import (
    Flag,
    Natural,
    Number,
    PathText,
    Positive,
    PositiveNumber,
    Section,
    Share,
    Text,
    allowed,
    increasing,
    one_of,
    whole,
)

Sync = Annotated[Literal["none", "step", "pooled"], one_of("none", "step", "pooled")]
Loss = Annotated[Literal["ce", "soft"], one_of("ce", "soft")]
Weights = Annotated[Literal["decay", "dpace"], one_of("decay", "dpace")]
Tracker = Annotated[Literal["tensorboard", "wandb", "none"], one_of("tensorboard", "wandb", "none")]
Dtype = Annotated[Literal["bfloat16", "float16", "float32"], one_of("bfloat16", "float16", "float32")]
ComputeDtype = Annotated[Literal["bfloat16", "float32"], one_of("bfloat16", "float32")]
Attention = Annotated[
    Literal["sdpa", "eager", "flash_attention_2", "flex_attention"],
    one_of("sdpa", "eager", "flash_attention_2", "flex_attention"),
]
Taps = Annotated[
    tuple[int, ...],
    allowed("a strictly increasing list of layer ids >= 0, not empty", increasing(0, empty=False)),
]


class Training(Section):
    """Optimizer steps, their synchronisation, and the optimizer."""

    accumulate: Positive = 1
    """Micro-batches of a drafter per optimizer step (`pooled`: times the number of drafters, from anyone)."""
    sync: Sync = "step"
    """`none`: replicas apart. `step`: every drafter contributes. `pooled`: whoever is free contributes."""
    anchors: Positive = 512
    """Anchors drawn per sequence; with model.block_size, the trained positions per second."""
    learning_rate: PositiveNumber = 6e-4
    """AdamW's peak learning rate."""
    warmup: Share = 0.04
    """Share of the planned batches over which the learning rate rises; a cosine to 0 follows."""
    weight_decay: Number = 0.0
    """AdamW's decoupled weight decay."""
    clip: PositiveNumber = 1.0
    """Largest norm of a step's gradient."""
    loss: Loss = "ce"
    """`ce`: cross-entropy to the data's tokens. `soft`: to the target's own distribution."""
    weights: Weights = "decay"
    """Weights of a block's slots: exp(-(k-1)/gamma), or D-PACE."""
    gamma: PositiveNumber | None = None
    """Decay of the slot weights; None: 7, 5, 4 for block sizes 16, 10, 8."""
    alpha: Share = 0.5
    """D-PACE's floor."""
    pass_slots: Positive = 65536
    """Block slots (samples × anchors × block size) that a drafter puts through forward and backward at once. A
    micro-batch of more is cut between samples, with the same gradients and less memory."""
    dtype: ComputeDtype = "bfloat16"
    """The drafter's compute type; master weights are float32."""
    evaluate_every: Natural = 0
    """Optimizer steps between held-out evaluations; 0: with each checkpoint only."""
    save_every: Natural = 0
    """Optimizer steps between checkpoints; 0: at the end only."""
    keep: Positive = 3
    """Checkpoints kept, the best one not counted."""
    log_every: Positive = 10
    """Optimizer steps between log lines."""
    tracker: Tracker = "tensorboard"
    """Where metrics are logged."""


class Model(Section):
    """The frozen target and the shape of the drafter."""

    name_or_path: Text | None = None
    """The target: a folder, or an id of the model hub. `./` and `../` start at the pipeline file's folder."""
    revision: Text | None = None
    """Commit or tag of a hub id."""
    random_weights: Flag = False
    """For measurements: seeded random weights in the shape that the target's config.json gives; none are read."""
    tokenizer: Text | None = None
    """Folder (as name_or_path) or id of the tokenizer, or `bytes` for the built-in one; None: the target's."""
    dtype: Dtype = "bfloat16"
    """The target's weights and compute type."""
    attention: Attention = "sdpa"
    """The target's attention implementation."""
    block_size: Annotated[int, allowed("an integer >= 2", whole(2))] = 16
    """Tokens of a drafted block, the verified one included."""
    drafter_layers: Positive = 5
    """Layers of the drafter."""
    taps: Taps | None = None
    """Target layers whose outputs feed the drafter (0-based); None: one per drafter layer, spread evenly."""
    mask_token_id: Natural | None = None
    """Token id of the mask; None: the tokenizer's."""
    warm_start: PathText | None = None
    """Folder of an exported drafter to start from."""
