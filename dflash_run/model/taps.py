"""Which target layers feed the drafter when the pipeline does not say."""


def default_taps(target_layers: int, drafter_layers: int) -> tuple[int, ...]:
    """One tap per drafter layer, spread evenly from layer 1 to layer n - 3 of n (the rule of the DFlash paper).

    A tap is 0-based and means the *output* of that layer, `hidden_states[tap + 1]` of transformers. Targets with
    fewer than four layers leave no room for the rule: there the taps may repeat or leave the target, which
    `DrafterShape.of` refuses.
    """
    if drafter_layers == 1:
        return (target_layers // 2,)
    step = (target_layers - 4) / (drafter_layers - 1)
    return tuple(round(1 + index * step) for index in range(drafter_layers))
