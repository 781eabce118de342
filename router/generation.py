"""One client's request at the workers: a wire request per prompt, each with n sequences.

Between `with` and its end the request is somebody's; however the block is left, what has not finished is
cancelled at its worker, once, and every ticket of the ledger is released. Nothing here awaits a worker,
so leaving is immediate even when the task is being cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from router.api.prepared import Prepared
from router.link import Mailbox, WorkerLink
from router.placement import Ticket
from workers.wire import Delta, Submit

Place = Callable[[int, int], tuple[WorkerLink, Ticket]]  # of (sequences, prompt tokens); raises NoWorker


@dataclass(slots=True, eq=False)
class _Call:
    """One wire request; `open_indices` are its sequences that have not ended."""

    request_id: str
    prompt: int
    link: WorkerLink
    ticket: Ticket
    open_indices: set[int]
    has_started: bool = False


class Generation:
    """Runs `prepared` where `place` puts its prompts; `request_ids` gives ids that no router uses again.

    Entering raises NoWorker or WorkerLost if a prompt cannot be sent; then none of them runs.
    """

    def __init__(
        self, prepared: Prepared, place: Place, request_ids: Iterator[str], salt: bytes = b""
    ) -> None:
        self._prepared = prepared
        self._place = place
        self._request_ids = request_ids
        self._salt = salt
        self._mailbox = Mailbox()
        self._calls: dict[str, _Call] = {}

    def __enter__(self) -> Self:
        try:
            for index in range(len(self._prepared.prompts)):
                self._submit(index)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_open(self) -> int:
        """Sequences that have not ended."""
        return sum(len(call.open_indices) for call in self._calls.values())

    async def take(self) -> list[tuple[int, Delta]]:
        """All that has come since the last call, each delta with its prompt's index; waits for the first.

        A sequence's last delta has `finish`; nothing comes after it, nor after `cancel`. Raises WorkerLost.
        """
        taken: list[tuple[int, Delta]] = []
        for delta in await self._mailbox.take():
            call = self._calls.get(delta.request_id)
            if call is None or delta.index not in call.open_indices:
                continue
            if not call.has_started:
                call.has_started = True
                call.ticket.start()
            if delta.finish is not None:
                self._end(call, delta.index)
            taken.append((call.prompt, delta))
        return taken

    def cancel(self, prompt: int, index: int) -> None:
        """Stop one sequence; one that has ended is left alone."""
        for call in self._calls.values():
            if call.prompt == prompt and index in call.open_indices:
                call.link.cancel(call.request_id, index)
                self._end(call, index)
                return

    def close(self) -> None:
        """Cancel what has not ended. Closing twice is harmless."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.link.cancel(call.request_id)
            call.ticket.release()

    def _submit(self, prompt: int) -> None:
        token_ids, params = self._prepared.prompts[prompt].token_ids, self._prepared.prompts[prompt].params
        link, ticket = self._place(params.n, len(token_ids))
        request_id = next(self._request_ids)
        self._calls[request_id] = _Call(request_id, prompt, link, ticket, set(range(params.n)))
        link.submit(Submit(request_id, token_ids, params, self._salt), self._mailbox)

    def _end(self, call: _Call, index: int) -> None:
        call.open_indices.discard(index)
        if not call.open_indices:
            del self._calls[call.request_id]
            call.link.release(call.request_id)
            call.ticket.release()
