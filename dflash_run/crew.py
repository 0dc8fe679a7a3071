"""Workers and the way to talk to them: threads of this process, or one spawned process each.

The launcher sees only `Crew`: it posts to workers and receives what they say, among it that one is gone.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, Final, Protocol

from dflash_run.messages import Finish, Gone
from dflash_run.worker import Mail
from dflash_sim.interrupts import SIGNALS, held

Worker = tuple[str, int]
"""(role, number)."""
Job = Callable[[Mail], None]
"""What a worker does from its start to its end; for processes a top-level function (or a `partial` of one)."""
_GRACE_S: Final = 2.0
"""How long a worker may take to end before it is killed."""


class Crew(Protocol):
    """All workers of a run."""

    def post(self, worker: Worker, message: object) -> None:
        """Send a message; one to a worker that is gone is dropped."""
        ...

    def receive(self, timeout: float) -> list[tuple[Worker, object]]:
        """What workers said, waiting at most `timeout` seconds for something; `Gone` comes after all it said."""
        ...

    def abandon(self, worker: Worker) -> None:
        """Give up a worker that hangs."""
        ...

    def close(self) -> None:
        """End everyone, by force where need be."""
        ...


class _ThreadMail:
    """A thread's mail box; `receive` side is the launcher's common queue."""

    def __init__(self, worker: Worker, said: "queue.SimpleQueue[tuple[Worker, object]]") -> None:
        self._worker = worker
        self._said = said
        self.box: queue.SimpleQueue[object] = queue.SimpleQueue()

    def get(self, timeout: float | None) -> object | None:
        try:
            return self.box.get(timeout=timeout) if timeout != 0 else self.box.get_nowait()
        except queue.Empty:
            return None

    def send(self, message: object) -> None:
        self._said.put((self._worker, message))


class GrowingCrew(Crew, Protocol):
    """One that workers can join."""

    def add(self, worker: Worker, job: Job) -> None:
        """Start another worker; one of this name that was given up is replaced."""
        ...


class ThreadCrew:
    """Every worker is a daemon thread. A hanging thread cannot be killed: it is given up and ends with the process."""

    def __init__(self, jobs: Mapping[Worker, Job]) -> None:
        self._said: queue.SimpleQueue[tuple[Worker, object]] = queue.SimpleQueue()
        self._mail: dict[Worker, _ThreadMail] = {}
        self._threads: dict[Worker, threading.Thread] = {}
        for worker, job in jobs.items():
            self.add(worker, job)

    def add(self, worker: Worker, job: Job) -> None:
        self._mail[worker] = _ThreadMail(worker, self._said)
        thread = threading.Thread(target=self._work, args=(worker, job), name=_named(worker), daemon=True)
        self._threads[worker] = thread
        thread.start()

    def post(self, worker: Worker, message: object) -> None:
        self._mail[worker].box.put(message)

    def receive(self, timeout: float) -> list[tuple[Worker, object]]:
        said = []
        try:
            said.append(self._said.get(timeout=max(timeout, 0.0)))
            while True:
                said.append(self._said.get_nowait())
        except queue.Empty:
            return said

    def abandon(self, worker: Worker) -> None:
        self.post(worker, Finish())

    def close(self) -> None:
        for worker in self._mail:
            self.post(worker, Finish())
        until = time.monotonic() + _GRACE_S
        for thread in self._threads.values():
            thread.join(max(until - time.monotonic(), 0.0))

    def _work(self, worker: Worker, job: Job) -> None:
        mail = self._mail[worker]
        try:
            job(mail)
        except BaseException as error:  # whatever a worker raises, the launcher must hear of it
            mail.send(Gone(f"{type(error).__name__}: {error}"))


class _PipeMail:
    """A process's mail box. Threads of it may send at the same time."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe
        self._sending = threading.Lock()

    def get(self, timeout: float | None) -> object | None:
        if not self._pipe.poll(timeout):
            return None
        try:
            message: object = self._pipe.recv()
        except EOFError:  # the launcher is gone
            return Finish()
        return message

    def send(self, message: object) -> None:
        with self._sending:
            self._pipe.send(message)


def _work_in_process(pipe: "Connection[Any, Any]", job: Job) -> None:
    """A worker process. A signal to the whole group is the launcher's business: who died of it could not save."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    mail = _PipeMail(pipe)
    try:
        job(mail)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        os._exit(1)  # nobody listens any more
    except Exception as error:
        mail.send(Gone(f"{type(error).__name__}: {error}"))


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """What is started meanwhile is born deaf to a terminal's or a scheduler's; ours are heard when the context ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # the tracker itself ignores the others only
    resource_tracker.ensure_running()  # starting it would let interrupts through again
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill(processes: Mapping[Worker, BaseProcess]) -> None:
    """End by force whoever lives."""
    for process in processes.values():
        if process.is_alive():
            process.kill()
            process.join()


class ProcessCrew:
    """Every worker is a process with one pipe, spawned: a fork of a process with threads or a GPU is broken.

    `start`: another start method. `forkserver` forks from a process that has neither, and starts faster.
    """

    def __init__(self, jobs: Mapping[Worker, Job], start: str = "spawn") -> None:
        self._context: Any = multiprocessing.get_context(start)
        self._pipes: dict[Worker, Connection[Any, Any]] = {}
        self._processes: dict[Worker, BaseProcess] = {}
        # At its exit multiprocessing would ask with SIGTERM, which workers do not hear, and wait for ever.
        self._at_exit = Finalize(None, _kill, (self._processes,), exitpriority=10)
        for worker, job in jobs.items():
            self.add(worker, job)

    def add(self, worker: Worker, job: Job) -> None:
        before = self._processes.get(worker)
        if before is not None:  # its memory must be free again
            before.join(_GRACE_S)
            before.kill()
            before.join()
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_work_in_process, args=(theirs, job), name=_named(worker), daemon=True
        )  # fmt: skip
        with held():  # or a worker is left that read half of what it is to do, or that nobody knows of
            with _no_interrupts():
                process.start()
            theirs.close()
            self._pipes[worker], self._processes[worker] = ours, process

    def workers(self) -> list[Worker]:
        """Those that have not gone."""
        return list(self._pipes)

    def process(self, worker: Worker) -> BaseProcess:
        """The worker's process."""
        return self._processes[worker]

    def post(self, worker: Worker, message: object) -> None:
        pipe = self._pipes.get(worker)
        if pipe is not None:
            with contextlib.suppress(OSError):  # it is gone; `receive` says so
                pipe.send(message)

    def receive(self, timeout: float) -> list[tuple[Worker, object]]:
        by_pipe = {pipe: worker for worker, pipe in self._pipes.items()}
        said: list[tuple[Worker, object]] = []
        for ready in wait(list(by_pipe), timeout=max(timeout, 0.0)):
            worker = by_pipe[ready]  # type: ignore[index]
            try:
                while self._pipes[worker].poll():
                    said.append((worker, self._pipes[worker].recv()))
            except (EOFError, OSError):
                said.append((worker, Gone(self._exit_of(worker))))
                del self._pipes[worker]
        return said

    def abandon(self, worker: Worker) -> None:
        self._processes[worker].kill()
        self._pipes.pop(worker, None)

    def close(self) -> None:
        for worker in list(self._pipes):
            self.post(worker, Finish())
        until = time.monotonic() + _GRACE_S
        try:
            for process in self._processes.values():
                process.join(max(until - time.monotonic(), 0.0))
        finally:  # also after a second interrupt: who is stopped or stuck would keep this process for ever
            _kill(self._processes)
            self._at_exit.cancel()
            for pipe in self._pipes.values():
                pipe.close()

    def _exit_of(self, worker: Worker) -> str:
        process = self._processes[worker]
        process.join(1.0)
        code = process.exitcode
        return f"killed by signal {-code}" if code is not None and code < 0 else f"exited with status {code}"


def _named(worker: Worker) -> str:
    return f"{worker[0]}/{worker[1]}"
