"""The router's side of the worker wire: one link to one worker, shared by all requests placed there.

A step's frame carries tokens of many requests; each is put into its request's mailbox with one look-up,
and a request that was asleep wakes once, however many tokens have come by then. A link is lost when the
worker closes it, breaks the protocol or falls silent; then every open request fails at once, after the
tokens that had still arrived. All methods run on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from workers.config import Endpoint
from workers.errors import WorkerLost
from workers.wire import (
    HEARTBEAT_S,
    PROTOCOL,
    SILENCE_S,
    Attach,
    Cancel,
    Challenge,
    Delta,
    Describe,
    Heartbeat,
    Hello,
    ModelCard,
    ProtocolError,
    Step,
    Submit,
    ToRouter,
    ToWorker,
    authenticate,
    frame,
    read_frame,
    router_decoder,
    tune,
)

CONNECT_S = 3.0
DESCRIBE_S = 30.0  # a card holds the tokenizer, up to some tens of MB
MAX_UNSENT_BYTES = 64 << 20  # a worker that reads this far behind is as good as lost
_GRACE_S = 0.1  # what this router's own stall may have kept from being read


class Mailbox:
    """The deltas that have come for one client's request and were not taken yet.

    Filled by one or several links, emptied by one task. It holds at most what the request may generate.
    """

    __slots__ = ("_deltas", "_error", "_waiter")

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: Delta) -> None:
        self._deltas.append(delta)
        if self._waiter is not None:
            self._wake()

    def fail(self, error: Exception) -> None:
        """Whoever takes gets `error`, once the deltas before it are taken. The first error counts."""
        self._error = self._error or error
        if self._waiter is not None:
            self._wake()

    async def take(self) -> list[Delta]:
        """All deltas there are, in the order of their arrival; waits for the first. Raises the error."""
        if not self._deltas:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            if not self._deltas:
                assert self._error is not None
                raise self._error
        deltas, self._deltas = self._deltas, []
        return deltas

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class WorkerLink:
    """An attached link. `open` makes one; `on_step` hears of every step after its deltas are delivered."""

    def __init__(
        self, endpoint: Endpoint, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.endpoint = endpoint
        self.hello = hello
        self.on_step: Callable[[Step], None] | None = None
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._mailboxes: dict[str, Mailbox] = {}
        self._card: asyncio.Future[ModelCard] | None = None
        self._lost: asyncio.Future[WorkerLost] = self._loop.create_future()
        self._last_heard_s = self._loop.time()
        self._tasks: list[asyncio.Task[None]] = []
        self._silence: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, endpoint: Endpoint, router_id: str, secret: bytes) -> WorkerLink:
        """Connect and attach. Raises OSError or TimeoutError if the worker cannot be reached, ProtocolError
        if it is not the incarnation that `endpoint` names or refuses this router."""
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            try:
                tune(writer)
                hello = await _attach(endpoint, router_id, secret, reader, writer)
            except BaseException:
                writer.transport.abort()
                raise
        link = cls(endpoint, hello, reader, writer)
        link._start()
        return link

    @property
    def is_lost(self) -> bool:
        return self._lost.done()

    @property
    def silent_s(self) -> float:
        """Seconds since the worker was last heard."""
        return self._loop.time() - self._last_heard_s

    @property
    def num_requests(self) -> int:
        """Wire requests that are open on this link."""
        return len(self._mailboxes)

    def submit(self, submit: Submit, mailbox: Mailbox) -> None:
        """Send a request; its deltas come to `mailbox` until `cancel` or `release`. Raises WorkerLost."""
        if self._lost.done():
            raise self._lost.result()
        self._mailboxes[submit.request_id] = mailbox
        self._send(submit)

    def cancel(self, request_id: str, index: int | None = None) -> None:
        """Stop one sequence, or the whole request, of which then nothing more is heard."""
        if index is None:
            self.release(request_id)
        self._send(Cancel(request_id, index))

    def release(self, request_id: str) -> None:
        """Nothing more is expected of this request. Releasing twice is harmless."""
        self._mailboxes.pop(request_id, None)

    async def describe(self) -> ModelCard:
        """The worker's model card. Raises WorkerLost or TimeoutError."""
        if self._lost.done():
            raise self._lost.result()
        if self._card is None:
            self._card = self._loop.create_future()
            self._send(Describe())
        async with asyncio.timeout(DESCRIBE_S):
            return await asyncio.shield(self._card)

    async def wait_lost(self) -> WorkerLost:
        """Return when the link is lost or closed, with the reason."""
        return await asyncio.shield(self._lost)

    def close(self, reason: str = "this router closed the link") -> None:
        """Fail what is open and drop the connection. Closing twice is harmless."""
        if self._lost.done():
            return
        error = WorkerLost(f"worker {self.endpoint.worker_id} was lost: {reason}; send the request again")
        self._lost.set_result(error)
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)
        self._mailboxes.clear()
        if self._card is not None and not self._card.done():
            self._card.set_exception(error)
            self._card.exception()  # retrieved here, because those who waited may have given up
        if self._silence is not None:
            self._silence.cancel()
        for task in self._tasks:
            task.cancel()
        self._writer.transport.abort()

    def _start(self) -> None:
        self._tasks = [self._loop.create_task(self._read()), self._loop.create_task(self._beat())]
        self._silence = self._loop.call_later(SILENCE_S, self._check_silence, False)

    def _send(self, message: ToWorker) -> None:
        if self._lost.done():
            return
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.close(f"it reads too slowly ({MAX_UNSENT_BYTES >> 20} MiB are unsent)")
        else:
            self._writer.write(frame(message))

    async def _read(self) -> None:
        reason = "the connection was closed"
        try:
            while True:
                message = await read_frame(self._reader, router_decoder)
                self._last_heard_s = self._loop.time()
                self._handle(message)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the worker closed the link or died
        except ProtocolError as error:
            reason = str(error)
        finally:
            self.close(reason)

    def _handle(self, message: ToRouter) -> None:
        if isinstance(message, Step):
            mailboxes = self._mailboxes
            for delta in message.deltas:
                mailbox = mailboxes.get(delta.request_id)
                if mailbox is not None:  # a cancelled request may still have had a token under way
                    mailbox.put(delta)
            if self.on_step is not None:
                self.on_step(message)
        elif isinstance(message, ModelCard):
            if self._card is not None and not self._card.done():
                self._card.set_result(message)
        else:
            raise ProtocolError(f"unexpected {type(message).__name__} on an attached link")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._send(Heartbeat())

    def _check_silence(self, is_second_look: bool) -> None:
        """Looks twice: if it was this router that stalled, the worker's frames are yet to be read."""
        left_s = SILENCE_S - self.silent_s
        if left_s > 0:
            self._silence = self._loop.call_later(left_s, self._check_silence, False)
        elif not is_second_look:
            self._silence = self._loop.call_later(_GRACE_S, self._check_silence, True)
        else:
            self.close(f"it was silent for {self.silent_s:.1f} s (limit {SILENCE_S:.0f} s)")


async def _attach(
    endpoint: Endpoint,
    router_id: str,
    secret: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> Hello:
    challenge = await read_frame(reader, router_decoder)
    if not isinstance(challenge, Challenge):
        raise ProtocolError(f"expected Challenge, got {type(challenge).__name__}")
    if challenge.protocol != PROTOCOL:
        raise ProtocolError(f"the worker speaks protocol {challenge.protocol}, this router {PROTOCOL}")
    writer.write(frame(Attach(router_id, authenticate(secret, challenge.nonce))))
    try:
        hello = await read_frame(reader, router_decoder)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise ProtocolError("the worker refused this router; is the cluster's secret the same?") from error
    if not isinstance(hello, Hello):
        raise ProtocolError(f"expected Hello, got {type(hello).__name__}")
    found = (hello.worker_id, hello.epoch, hello.incarnation)
    if found != (endpoint.worker_id, endpoint.epoch, endpoint.incarnation):
        raise ProtocolError(
            f"at {endpoint.host}:{endpoint.port} answers {hello.worker_id} epoch {hello.epoch} "
            f"({hello.incarnation}), expected {endpoint.worker_id} epoch {endpoint.epoch} "
            f"({endpoint.incarnation})"
        )
    return hello
