"""The jobs of a profile's processes. torch is imported when they begin, not where they are handed out."""

from dflash_run.training.orders import TrainingOrders
from dflash_run.worker import Mail


def be_target(mail: Mail, orders: TrainingOrders) -> None:
    """A target that can be measured."""
    from dflash_run.profiling.loops import ProfiledTarget
    from dflash_run.training.bench import Bench

    ProfiledTarget(Bench(mail, orders)).run()


def be_drafter(mail: Mail, orders: TrainingOrders) -> None:
    """A drafter that can be measured."""
    from dflash_run.profiling.loops import ProfiledDrafter
    from dflash_run.training.bench import Bench

    ProfiledDrafter(Bench(mail, orders)).run()
