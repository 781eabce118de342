"""The engine thread: the one owner of the engine, its pool and its model, from loading to the end.

Commands come in through a thread-safe inbox and are carried out between two steps; each step's output
leaves through `publish`, called on this thread. While there is nothing to do the thread sleeps in the
inbox. An exception that the engine itself did not turn into failed requests ends the thread: `on_failure`
hears why, and the worker with it dies loudly instead of serving from a broken state.

The engine is built on this thread, because OpenMP gives every thread that computes a team of its own: a
second team would put more threads than cores under its care, and it then lets them sleep at every barrier,
which costs a third of the speed of decoding.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from workers.engine import Engine, StepOutput

Command = Callable[[Engine], None]


class EngineLoop:
    """Runs what `build` returns until `stop`; `publish` must be thread-safe and quick."""

    def __init__(
        self,
        build: Callable[[], Engine],
        publish: Callable[[StepOutput], object],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._build = build
        self._publish = publish
        self._on_failure = on_failure
        self._built: Future[Engine] = Future()
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._busy_since: float | None = None

    def start(self) -> Engine:
        """Build the engine and let it run; what it tells of itself may be read. Raises as `build` does."""
        self._thread.start()
        return self._built.result()

    def call(self, command: Command) -> None:
        """Carry out `command(engine)` before the next step."""
        self._inbox.put(command)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Finish the running step and end the thread. Stopping twice is harmless."""
        self._inbox.put(None)
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def stalled_s(self) -> float:
        """How long the running step has taken so far, in seconds; 0 between steps."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def _run(self) -> None:
        try:
            engine = self._build()
        except BaseException as error:
            self._built.set_exception(error)
            return
        self._built.set_result(engine)
        try:
            while self._drain_inbox(engine):
                if engine.has_work:
                    self._busy_since = time.monotonic()
                    output = engine.step()
                    self._busy_since = None
                    self._publish(output)
        except BaseException as error:
            self._on_failure(error)

    def _drain_inbox(self, engine: Engine) -> bool:
        """Carry out every waiting command; wait for one if the engine is idle. False: stop."""
        block = not engine.has_work
        while True:
            try:
                command = self._inbox.get(block=block)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(engine)
            block = False
