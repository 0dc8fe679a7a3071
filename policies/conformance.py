"""The conformance kit: what any policy class must survive, in a test of a few lines.

    from policies.conformance import conformance_test
    from mine import ShortestLane

    test_my_policy_conforms = conformance_test(ShortestLane)

Hypothesis draws pipelines and everything that may happen in them (offers, takes, commits, flushes, lost targets and
drafters, abandoned steps, stops), drives the real dispatcher with the policy, and shows the smallest case that breaks a
rule. docs/conformance.md lists the rules. Nothing else in `policies` imports this module; it needs Hypothesis.
"""

import importlib
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import zip_longest

from policies.dispatcher import Dispatcher
from policies.effects import Effect
from policies.errors import PolicyError
from policies.hop import Hop
from policies.policy import Policy, Shape
from policies.watching import BrokenRule, Watched, check_layouts, watched
from policies.world import Action, Setup, World

try:
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
    from hypothesis.errors import Flaky
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "policies.conformance needs Hypothesis: pip install hypothesis, or install this project with its extra 'dev'"
    ) from error

__all__ = ["ConformanceError", "conformance_test"]

Factory = Callable[[], Policy]
RETRIES = 250
LOSSES = 3
"""The most that goes wrong in one run."""
TROUBLES, STOP = 32, 40
"""Drawn numbers from the first on stand for something that goes wrong, the second for a stop."""
SEEDS = 40
"""Runs that are compared between processes of different hash seeds."""
TROUBLE = ("target_lost", "drafter_lost", "refused", "abandon", "loader_stops")


class ConformanceError(AssertionError):
    """A policy broke a rule: what it did, the rule, the pipeline, and what had happened."""


def conformance_test(
    policy: Factory, *, as_feed: bool = True, patience: int | None = None, examples: int = 150
) -> Callable[[], None]:
    """A test function that fails with a ConformanceError if the policy breaks a rule.

    `policy` is a class, or any callable without arguments that makes a fresh policy. `as_feed`: also try it between
    loader and targets (where its layout allows). `patience`: how many takes may pass over a waiting batch, or a
    consumer that is told to wait beside one; by default 2 × consumers × (consumers + lanes + accumulate + prefetch).
    `examples`: how many pipelines are drawn; always the same ones.
    """
    if not __debug__:
        raise RuntimeError("the conformance kit checks with assert: run it without python -O")

    hops = st.sampled_from([False, False, True]) if as_feed else st.just(False)
    always = settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )

    examine = _Examination(policy, patience)

    @always
    @given(setup=_small_setups(), feed=hops, choices=_CHOICES, pace=_PACES, trouble=_TROUBLE)
    def survives(setup: Setup, feed: bool, choices: list[int], pace: int, trouble: int) -> None:
        examine(setup, feed, tuple(choices), pace, trouble)

    @settings(always, max_examples=max(1, examples // 2))
    @given(setup=_long_setups(), feed=hops, pace=_PACES)
    def starves_nobody(setup: Setup, feed: bool, pace: int) -> None:
        examine(setup, feed, (), pace, 0)

    def conforms() -> None:
        try:
            survives()
            starves_nobody()
        except Flaky as error:
            first = next(iter(getattr(error, "exceptions", ())), error)
            name = getattr(policy, "__name__", "the policy")
            rule = "rule: a policy is deterministic: no randomness, clock, id() or order of a set"
            raise ConformanceError(f"{name} broke a rule once and not the next time\n{rule}\n{first}") from None
        _compare_processes(policy, as_feed)

    conforms.__doc__ = f"{getattr(policy, '__name__', policy)} survives the conformance kit."
    return conforms


# What is drawn ------------------------------------------------------------------------------------------------


_CHOICES = st.lists(st.integers(0, STOP), max_size=40)
_PACES = st.integers(0, 999)
_TROUBLE = st.sampled_from([0, 5, 15])
"""How often, in percent, something goes wrong after the drawn choices."""


def _small_setups() -> st.SearchStrategy[Setup]:
    return _setups(st.lists(st.integers(0, 2), max_size=8).map(_dense))


def _long_setups() -> st.SearchStrategy[Setup]:
    """Many batches, of which few are of the second bucket: whoever can be starved has the time to be."""
    some = st.integers(2, 48)
    rare = st.lists(st.integers(0, 9), min_size=1, max_size=3)
    buckets = st.builds(lambda n, rare: _dense([int(b in rare) for b in range(n)]), some, rare)
    few = {"drafters": st.integers(1, 2), "accumulate": st.integers(1, 2), "prefetch": st.integers(0, 1)}
    return _setups(buckets, targets=st.integers(2, 3), capacity=st.integers(1, 3), **few)


def _setups(
    buckets: st.SearchStrategy[tuple[int, ...]], **special: st.SearchStrategy[int]
) -> st.SearchStrategy[Setup]:
    usual: dict[str, st.SearchStrategy[int]] = {
        "targets": st.integers(1, 3),
        "drafters": st.integers(1, 3),
        "capacity": st.integers(0, 3),
        "feed_depth": st.integers(0, 3),
        "accumulate": st.integers(1, 3),
        "prefetch": st.integers(0, 2),
        "min_buckets": st.integers(2, 3),
    }
    return st.builds(
        Setup,
        buckets=buckets,
        mix=st.sampled_from(["prefer", "require"]),
        feed=st.sampled_from(["shared", "rotating"]),
        sync=st.sampled_from(["none", "step", "pooled"]),
        **(usual | special),
    )


def _dense(buckets: list[int]) -> tuple[int, ...]:
    """Every bucket that is named has a batch."""
    names = sorted(set(buckets))
    return tuple(names.index(bucket) for bucket in buckets)


def _random_setup(rng: random.Random) -> Setup:
    return Setup(
        targets=rng.randint(1, 4),
        drafters=rng.randint(1, 4),
        buckets=_dense([rng.randrange(3) for _ in range(rng.randint(1, 14))]),
        capacity=rng.randint(0, 3),
        mix=rng.choice(["prefer", "require"]),
        feed_depth=rng.randint(0, 3),
        sync=rng.choice(["none", "step", "pooled"]),
        accumulate=rng.randint(1, 3),
        prefetch=rng.randint(0, 2),
    )


# One run ------------------------------------------------------------------------------------------------------


class _Trial:
    """A policy in a pipeline: a world that is driven and checked, and a twin that must answer the same."""

    def __init__(self, policy: Factory, setup: Setup, feed: bool, patience: int | None) -> None:
        self.setup, self.feed = setup, feed
        self.story: list[str] = []
        self._policy = policy
        self._patience = patience
        self.policy: Watched
        self.world, self._twin = self._world(), self._world()

    def _world(self) -> World:
        setup = self.setup
        lanes = 1 if self.feed else max(setup.buckets, default=0) + 1
        workers = setup.targets if self.feed else setup.drafters
        each = 1 if self.feed else setup.accumulate + setup.prefetch
        patience = 2 * workers * (lanes + workers + each) if self._patience is None else self._patience
        self.policy = policy = watched(self._policy(), patience)
        core = setup.dispatcher(feed=policy) if self.feed else setup.dispatcher(dispatch=policy)
        return World(setup, core)

    def action(self, choice: int) -> Action:
        """What a drawn number stands for now: small ones are completions, then what goes wrong, the last is a stop."""
        if choice == STOP:
            return ("stop",)
        options = [action for action in self.world.completions() if action[0] != "load" or action[1] in (1, 2, 5)]
        if choice >= TROUBLES and self.world.losses < LOSSES:
            options = self.world.disruptions() or options
        return options[choice % len(options)]

    def do(self, action: Action) -> list[Effect]:
        """Carry out one action in both worlds, and check everything."""
        self.story.append(_words(action))
        trouble = action[0] in TROUBLE
        first, second = (self._tell(world, action, trouble) for world in (self.world, self._twin))
        self.story[-1] += f" → {', '.join(map(str, first)) or 'nothing'}"
        if first != second:
            raise BrokenRule(
                f"{type(self.policy).__name__} is not deterministic: told the same, a second instance led to "
                f"{', '.join(map(str, second)) or 'nothing'}\n"
                "rule: the same inputs give the same answers: no randomness, clock, id(), order of a set, or state "
                "shared by instances"
            )
        for world in (self.world, self._twin):
            world.follow(first)
        self._check_progress()
        self.world.check()
        self._ask_reach()
        return first

    def _tell(self, world: World, action: Action, trouble: bool) -> list[Effect]:
        policy = self.hop(world.core).policy
        assert isinstance(policy, Watched)
        if not trouble:
            return world.tell(action)
        policy.promises_hold = False
        effects = world.tell(action)
        policy.promises_hold = True
        policy.forget()
        return effects

    def hop(self, core: Dispatcher) -> Hop:
        """The hop that the policy serves."""
        return core.feed if self.feed else core.dispatch

    def _ask_reach(self) -> None:
        """Ask in every state, so that a lane that was not named is caught where the batch is sent."""
        if self.world.ended is None:
            for core in (self.world.core, self._twin.core):
                hop = self.hop(core)
                for producer in hop._moves.open_producers() if hop.consumers else ():
                    hop.policy.reach(producer, hop)

    def _check_progress(self) -> None:
        """A run that cannot go on although batches wait: name who is told to wait beside what."""
        world = self.world
        if world.ended is not None or world.completions():
            return
        hop, name = self.hop(world.core), type(self.policy).__name__
        for consumer in hop.waiting:
            beside = [f"{list(each.waiting)} in lane {each.name!r}" for each in hop.lanes if each.read_by(consumer)]
            beside = [text for text in beside if not text.startswith("[]")]
            offers = [f"batch {b} offered to lane {hop.lanes[k].name!r}" for _, b, k in hop.held
                      if hop.lanes[k].read_by(consumer) and not hop.lanes[k].waiting]
            if hop._moves.may_take(consumer) and (beside or offers):
                raise BrokenRule(
                    f"{name}.take answers WAIT for consumer {consumer} for ever, beside {', '.join(beside + offers)}: "
                    "nobody else can act, the run hangs\n"
                    "rule: every waiting batch is taken in the end; WAIT only while somebody else can still act"
                )
        raise BrokenRule(
            f"the run hangs under {name}: nobody can act, and {world.core.ledger.counts()}\n"
            f"lanes: {[(lane.name, list(lane.waiting)) for lane in hop.lanes]}, held offers: {hop.held}\n"
            "rule: while there are batches, some worker can act"
        )


class _Examination:
    """Runs of one policy. After the first failure at most RETRIES more runs look for a smaller one."""

    def __init__(self, policy: Factory, patience: int | None) -> None:
        self._policy, self._patience = policy, patience
        self._failed: dict[object, ConformanceError] = {}
        self._left = RETRIES

    def __call__(self, setup: Setup, feed: bool, choices: tuple[int, ...], pace: int, trouble: int) -> None:
        """One run: what `choices` says first, then at random (`pace` 0: in order), to its end."""
        case = setup, feed, choices, pace, trouble
        if self._failed and case not in self._failed:
            self._left -= 1
            if self._left < 0:
                return
        try:
            try:
                feed = feed and _may_feed(self._policy, setup)
                setup = _fitting(self._policy, setup, feed)
            except (Exception, SystemExit):  # `_examine` meets it too, and says what it is
                feed = False
            _examine(self._policy, setup, feed, self._patience, choices, pace, trouble)
        except ConformanceError as error:
            self._failed[case] = error
            raise


def _examine(
    policy: Factory,
    setup: Setup,
    feed: bool,
    patience: int | None,
    choices: tuple[int, ...],
    pace: int,
    trouble: int,
) -> None:
    trial: _Trial | None = None
    try:
        check_layouts(policy, setup.feed_shape() if feed else setup.dispatch_shape())
        trial = _Trial(policy, setup, feed, patience)
        for action in _actions(trial, choices, pace, trouble):
            trial.do(action)
    except BrokenRule as error:
        raise ConformanceError(f"{error}\n{_told(setup, feed, trial)}") from error.__cause__
    except PolicyError as error:
        rule = "rule: see above; the dispatcher refuses such an answer"
        raise ConformanceError(f"{error}\n{rule}\n{_told(setup, feed, trial)}") from None
    except AssertionError as error:
        broken = str(error) or traceback.extract_tb(error.__traceback__)[-1].line
        what = f"the dispatcher lost its way under this policy: {broken}"
        raise ConformanceError(f"{what}\n{_told(setup, feed, trial)}") from error
    except (Exception, SystemExit) as error:
        what = f"the policy cannot be used: {type(error).__name__}: {error}"
        rule = "rule: it is made without arguments, its layout is a Layout of LaneSpecs, and no method raises or exits"
        raise ConformanceError(f"{what}\n{rule}\n{_told(setup, feed, trial)}") from error


def _may_feed(policy: Factory, setup: Setup) -> bool:
    """Whether the policy's lanes fit a loader: a bound needs a lane for each bucket, and the feed has one bucket."""
    layout = policy().layout(setup.feed_shape())
    return layout.bound is None or len(layout.lanes) == 1


def _fitting(policy: Factory, setup: Setup, feed: bool) -> Setup:
    """The same pipeline with the names that fit the policy; a policy with a bound needs room in it."""
    if not feed:
        layout = policy().layout(replace(setup.dispatch_shape(), capacity=100))
        return replace(setup, policy="yours", bounded=layout.bound is not None)
    bound = policy().layout(setup.feed_shape()).bound
    return replace(setup, feed="yours", feed_depth=max(1, setup.feed_depth) if bound is not None else setup.feed_depth)


def _actions(trial: _Trial, choices: tuple[int, ...], pace: int, trouble: int) -> Iterator[Action]:
    rng = random.Random(pace)
    paces: dict[Action, float] = {}
    """Each worker has a speed of its own at each of its acts."""
    for choice in choices:
        if trial.world.ended is not None:
            return
        yield trial.action(choice)
    while trial.world.ended is None:
        if rng.randrange(100) < trouble and trial.world.losses < LOSSES and trial.world.disruptions():
            yield rng.choice(trial.world.disruptions())
            continue
        options = [action for action in trial.world.completions() if action[0] != "load" or action[1] == 1]
        speeds = [paces.setdefault(action[:2], rng.choice([0.05, 1, 1, 5])) for action in options] if pace else []
        yield rng.choices(options, speeds)[0] if pace else options[0]


# What is told -------------------------------------------------------------------------------------------------


def _words(action: Action) -> str:
    name, *rest = action
    return f"{name.replace('_', ' ') if isinstance(name, str) else name} {' '.join(map(str, rest))}".strip()


def _told(setup: Setup, feed: bool, trial: _Trial | None) -> str:
    where = "between loader and targets" if feed else "between targets and drafters"
    shape: Shape = setup.feed_shape() if feed else setup.dispatch_shape()
    room = f"depth {shape.depth}" if shape.capacity is None else f"capacity {shape.capacity}"
    lines = [
        f"pipeline: {setup.targets} target(s), {setup.drafters} drafter(s), the policy {where} with {room}, "
        f"batches of buckets {list(setup.buckets)}, sync {setup.sync}, accumulate {setup.accumulate}, "
        f"prefetch {setup.prefetch}, mix {setup.mix}",
        "what happened:",
    ]
    story = trial.story if trial is not None else []
    first = max(0, len(story) - 40)
    lines += [f"  … {first} earlier inputs"] if first else []
    lines += [f"  {k + 1}. {text}" for k, text in enumerate(story) if k >= first]
    return "\n".join(lines if story else [*lines, "  nothing yet: the lanes were laid out"])


# Between processes --------------------------------------------------------------------------------------------


def _transcript(policy: Factory, as_feed: bool) -> Iterator[str]:
    """The effects of fixed runs, a line each."""
    for seed in range(SEEDS):
        rng = random.Random(seed)
        setup = _random_setup(rng)
        feed = as_feed and rng.random() < 0.2 and _may_feed(policy, setup)
        setup = _fitting(policy, setup, feed)
        core = setup.dispatcher(feed=policy()) if feed else setup.dispatcher(dispatch=policy())
        world = World(setup, core)
        while world.ended is None:
            action = world.choose(rng)
            effects = world.tell(action)
            world.follow(effects)
            yield f"run {seed}: {_words(action)} → {', '.join(map(str, effects))}"


def _compare_processes(policy: Factory, as_feed: bool) -> None:
    """Two processes whose strings hash differently must answer alike.

    A policy that cannot be imported by name (a lambda, a class inside a function) is passed over.
    """
    module, name = getattr(policy, "__module__", "__main__"), getattr(policy, "__qualname__", "<")
    if module == "__main__" or "<" in name:
        return
    command = [sys.executable, "-W", "ignore", "-m", "policies.conformance", module, name, str(int(as_feed))]
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    answers = []
    for seed in ("1", "2"):
        told = subprocess.run(command, capture_output=True, text=True, env={**inherited, "PYTHONHASHSEED": seed})
        answers.append(told.stdout.splitlines())
    one, two = answers
    for first, second in zip_longest(one, two, fillvalue="the end of the runs"):
        if first != second:
            raise ConformanceError(
                f"{name} is not deterministic: two processes with different PYTHONHASHSEED answered\n"
                f"  {first}\n  {second}\n"
                "rule: the same inputs give the same answers: no randomness, clock, hash() or order of a set"
            )


def _main(module: str, name: str, as_feed: str) -> None:
    try:
        policy: object = importlib.import_module(module)
        for part in name.split("."):
            policy = getattr(policy, part)
    except Exception:
        return
    assert callable(policy)
    for line in _transcript(policy, as_feed == "1"):
        print(line)


if __name__ == "__main__":
    _main(*sys.argv[1:])
