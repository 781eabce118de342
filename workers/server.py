"""The worker's side of the wire: links from router replicas in, one frame per step and router out.

Every request belongs to the link it came by. A link that closes, breaks the protocol or falls silent
takes its requests with it, so that a lost router never leaves blocks behind. All methods run on the
event loop; the engine is reached through the loop's inbox only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
from collections.abc import Callable

from kvcache.events import KvEvent
from workers.engine import Engine, StepOutput
from workers.errors import EngineFault, HeadraceError, NoWorker
from workers.grammars import Grammars
from workers.loop import Command
from workers.sampling.grammar import LlguidanceCompiler
from workers.sampling.params import GrammarSpec
from workers.wire import (
    HEARTBEAT_S,
    PROTOCOL,
    SILENCE_S,
    AskSnapshot,
    Attach,
    Cancel,
    Challenge,
    Delta,
    Describe,
    Drain,
    Heartbeat,
    Hello,
    Load,
    ModelCard,
    ProtocolError,
    Snapshot,
    Step,
    Submit,
    ToRouter,
    authenticate,
    frame,
    read_frame,
    tune,
    worker_decoder,
)

logger = logging.getLogger(__name__)

MAX_UNSENT_BYTES = 64 << 20  # a router that reads this far behind is as good as lost


class RouterLink:
    """One authenticated router replica and the requests it owns."""

    def __init__(self, router_id: str, writer: asyncio.StreamWriter) -> None:
        self.router_id = router_id
        self.request_ids: set[str] = set()
        self._writer = writer

    def send(self, message: ToRouter) -> None:
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            logger.warning("router %s reads too slowly, closing its link", self.router_id)
            self.close()
        elif not self._writer.is_closing():
            self._writer.write(frame(message))

    def close(self) -> None:
        self._writer.transport.abort()


class WireServer:
    """Accepts router links; hands their requests to `call` and the engine's output back to them."""

    def __init__(self, hello: Hello, card: ModelCard, secret: bytes, call: Callable[[Command], None]) -> None:
        self._hello = hello
        self._card = card
        self._secret = secret
        self._call = call
        self._links: dict[str, RouterLink] = {}
        self._owners: dict[str, RouterLink] = {}
        self._event_seq = 0
        self._load = Load(0, 0, hello.num_blocks, 0, 0, 0)
        self._server: asyncio.Server | None = None
        self._heart: asyncio.Task[None] | None = None
        self._is_draining = False
        self._grammars = Grammars(
            lambda: LlguidanceCompiler(card.tokenizer_json, card.vocab_size, card.eos_ids)
        )
        self._compiling: dict[str, asyncio.Task[None]] = {}  # by request

    async def start(self, host: str) -> int:
        """Listen on a free port of `host` and return the port."""
        self._server = await asyncio.start_server(self._serve_link, host, 0)
        self._heart = asyncio.create_task(self._beat())
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._heart is not None:
            self._heart.cancel()
        for link in list(self._links.values()):
            link.close()
        for task in self._compiling.values():
            task.cancel()
        self._grammars.close()

    def publish(self, output: StepOutput) -> None:
        """Send one step's output to the routers it belongs to."""
        self._load = output.load
        self._event_seq += len(output.events)
        by_link: dict[RouterLink, list[Delta]] = {}
        for delta in output.deltas:
            link = self._owners.get(delta.request_id)
            if link is not None:
                by_link.setdefault(link, []).append(delta)
        for request_id in output.finished_ids:
            self._disown(request_id)
        for link in self._links.values():
            deltas = by_link.get(link, [])
            if deltas or output.events:
                link.send(self._step(deltas, output.events))

    def drain(self) -> None:
        """Refuse new requests; those that run go on."""
        self._is_draining = True

    def _step(self, deltas: list[Delta], events: list[KvEvent]) -> Step:
        return Step(deltas, events, self._event_seq, self._load)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for link in list(self._links.values()):
                link.send(self._step([], []))

    async def _serve_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tune(writer)
        link: RouterLink | None = None
        try:
            async with asyncio.timeout(SILENCE_S):
                link = await self._handshake(reader, writer)
            while True:
                async with asyncio.timeout(SILENCE_S):
                    message = await read_frame(reader, worker_decoder)
                self._handle(link, message)
        except TimeoutError:
            logger.warning("router %s fell silent", link.router_id if link else "(not attached)")
        except ProtocolError as error:
            logger.warning("refusing a link: %s", error)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the router closed the link or died
        finally:
            if link is not None:
                self._forget(link)
            writer.transport.abort()

    async def _handshake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RouterLink:
        nonce = secrets.token_bytes(16)
        writer.write(frame(Challenge(PROTOCOL, nonce)))
        attach = await read_frame(reader, worker_decoder)
        if not isinstance(attach, Attach):
            raise ProtocolError(f"expected Attach, got {type(attach).__name__}")
        if not hmac.compare_digest(attach.mac, authenticate(self._secret, nonce)):
            raise ProtocolError(f"router {attach.router_id} does not know this cluster's secret")
        link = RouterLink(attach.router_id, writer)
        stale = self._links.get(link.router_id)
        if stale is not None:  # the router has reconnected before its old link was noticed dead
            self._forget(stale)
            stale.close()
        self._links[link.router_id] = link
        link.send(self._hello)
        link.send(self._step([], []))
        return link

    def _forget(self, link: RouterLink) -> None:
        if self._links.get(link.router_id) is link:
            del self._links[link.router_id]
        for request_id in link.request_ids:
            self._owners.pop(request_id, None)
            self._cancel(request_id)
        link.request_ids.clear()

    def _handle(self, link: RouterLink, message: object) -> None:
        match message:
            case Submit():
                self._submit(link, message)
            case Cancel(request_id, index):
                if self._owners.get(request_id) is link:
                    was_compiling = request_id in self._compiling
                    self._cancel(request_id, index)
                    if was_compiling and index is None:
                        self._disown(request_id)
            case Describe():
                link.send(self._card)
            case AskSnapshot():
                self._send_snapshot(link)
            case Drain():
                self.drain()
            case Heartbeat():
                pass
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__} on an attached link")

    def _submit(self, link: RouterLink, submit: Submit) -> None:
        if self._is_draining:
            self._refuse(link, submit, NoWorker("the worker is draining; send the request again"))
            return
        if submit.request_id in self._owners:
            self._refuse(link, submit, EngineFault("the request id is already in use"))
            return
        self._owners[submit.request_id] = link
        link.request_ids.add(submit.request_id)
        if submit.params.grammar is None:
            self._call(lambda engine: engine.submit(submit))
        else:
            constrained = self._submit_constrained(link, submit, submit.params.grammar)
            self._compiling[submit.request_id] = asyncio.create_task(constrained)

    async def _submit_constrained(self, link: RouterLink, submit: Submit, spec: GrammarSpec) -> None:
        """Compile first; what is cancelled meanwhile never reaches the engine."""
        try:
            grammar = await self._grammars.compile(spec)
        except Exception as error:
            if not isinstance(error, HeadraceError):
                logger.exception("a grammar could not be compiled for an unforeseen reason")
                error = EngineFault(f"the grammar could not be compiled: {error}")
            self._disown(submit.request_id)
            self._refuse(link, submit, error)
            return
        finally:
            self._compiling.pop(submit.request_id, None)
        self._call(lambda engine: engine.submit(submit, grammar))

    def _disown(self, request_id: str) -> None:
        link = self._owners.pop(request_id, None)
        if link is not None:
            link.request_ids.discard(request_id)

    def _cancel(self, request_id: str, index: int | None = None) -> None:
        compiling = self._compiling.get(request_id)
        if compiling is not None and index is None:
            compiling.cancel()
        self._call(lambda engine: engine.cancel(request_id, index))

    def _refuse(self, link: RouterLink, submit: Submit, error: HeadraceError) -> None:
        refused = [
            Delta(submit.request_id, index, [], finish="error", error=error.message, error_code=error.code)
            for index in range(submit.params.n)
        ]
        link.send(self._step(refused, []))

    def _send_snapshot(self, link: RouterLink) -> None:
        loop = asyncio.get_running_loop()

        def take(engine: Engine) -> None:
            # Runs between two steps, after every earlier step's `publish` was queued on the event loop:
            # the snapshot is therefore sent after exactly those events that it contains.
            blocks = engine.snapshot()
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(lambda: link.send(Snapshot(self._event_seq, blocks)))

        self._call(take)
