"""The jobs of a training's processes. torch is imported when they begin, not where they are handed out."""

from dflash_run.training.orders import TrainingOrders
from dflash_run.worker import Mail


def be_target(mail: Mail, orders: TrainingOrders) -> None:
    """Be a target until told to finish."""
    from dflash_run.training.bench import Bench
    from dflash_run.training.target_loop import TargetLoop

    TargetLoop(Bench(mail, orders)).run()


def be_drafter(mail: Mail, orders: TrainingOrders) -> None:
    """Be a drafter until told to finish."""
    from dflash_run.training.bench import Bench
    from dflash_run.training.drafter_loop import DrafterLoop

    DrafterLoop(Bench(mail, orders)).run()
