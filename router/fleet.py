"""The live workers as this router sees them: who is a member, who is attached, what they serve.

The controller says who the members are, a link says whether one is alive. Links outlive a controller
that is away, and a worker that leaves the membership finishes what it runs. All methods run on the event
loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType

from cluster.membership import Membership
from router.api.models import unknown_model
from router.api.prepared import ModelLimits
from router.link import WorkerLink
from router.member import FIRST_PAUSE_S, LONGEST_PAUSE_S, Member
from router.placement import Candidate, PlacementPolicy, Ticket
from router.text.tokenizer import ModelText
from workers.errors import NoWorker
from workers.wire import ModelCard, ProtocolError

logger = logging.getLogger(__name__)

POLL_S = 15.0  # the controller answers a long poll within 10 s
RETRY_AFTER_S = 2.0  # about what a worker with a small model takes to come back


class Fleet:
    """Attaches to every member as `router_id`. `models` are known from the start, being configured."""

    def __init__(
        self,
        router_id: str,
        secret: bytes,
        policy: PlacementPolicy,
        models: Iterable[str] = (),
        tool_formats: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._router_id = router_id
        self._secret = secret
        self._policy = policy
        self._known_models = set(models)
        self._tool_formats = tool_formats
        self._members: dict[str, Member] = {}
        self._retired: list[Member] = []
        self._texts: dict[str, ModelText] = {}
        self._learning = asyncio.Lock()

    async def follow(self, membership: Callable[[int], Awaitable[Membership]]) -> None:
        """Apply whatever a long poll returns, for ever; a controller that is away is asked again."""
        version, pause_s = -1, FIRST_PAUSE_S
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    current = await membership(version)
            except Exception as error:
                logger.warning("the controller does not answer: %s", str(error) or type(error).__name__)
                await asyncio.sleep(pause_s)
                version = -1  # a controller that has started anew counts from the beginning
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                version, pause_s = current.version, FIRST_PAUSE_S
                self.apply(current)

    def apply(self, membership: Membership) -> None:
        """Make the members those of `membership`."""
        current = {worker.worker_id: worker for worker in membership.workers}
        self._retired = [member for member in self._retired if not member.is_stopped]
        for worker_id, member in list(self._members.items()):
            if current.get(worker_id) != member.endpoint:
                del self._members[worker_id]
                self._dismiss(member, has_successor=worker_id in current)
        for worker_id, endpoint in current.items():
            self._known_models.add(endpoint.model)
            if worker_id not in self._members:
                self._members[worker_id] = Member(endpoint, self._router_id, self._secret, self._learn)

    def model(self, name: str) -> tuple[ModelText, ModelLimits]:
        """The text of a model that can be served now, and the limits of its smallest worker.

        Raises UnknownModel, or NoWorker if the model is known but nobody serves it now.
        """
        live = self._live(name)
        text = self._texts.get(name)
        if not live or text is None:
            raise self._unserved(name)
        limit = min(link.hello.max_context_tokens for _, link in live)
        return text, ModelLimits(limit, text.card.vocab_size)

    def card(self, name: str) -> ModelCard:
        """The card of a model, whether someone serves it now or not. Raises UnknownModel or NoWorker."""
        text = self._texts.get(name)
        if text is None:
            raise self._unserved(name)
        return text.card

    def place(self, model: str, num_sequences: int, num_prompt_tokens: int) -> tuple[WorkerLink, Ticket]:
        """The worker for a request, which is counted on it from now on. Raises NoWorker."""
        live = self._live(model)
        if not live:
            raise self._unserved(model)
        chosen = self._policy.choose(
            [
                Candidate(
                    worker_id=member.endpoint.worker_id,
                    num_sequences=member.load.num_sequences,
                    num_waiting_tokens=member.load.num_waiting_tokens,
                    max_sequences=link.hello.max_sequences,
                )
                for member, link in live
            ]
        )
        member, link = live[chosen]
        return link, member.load.dispatch(num_sequences, num_prompt_tokens)

    @property
    def cards(self) -> list[ModelCard]:
        """The cards of all models that a worker was ever attached for, by name."""
        return [self._texts[name].card for name in sorted(self._texts)]

    @property
    def is_ready(self) -> bool:
        """Whether some worker has been heard within the heartbeat."""
        return any(member.live_link is not None for member in self._members.values())

    async def stop(self) -> None:
        """Close every link; what is open on them fails."""
        members = [*self._members.values(), *self._retired]
        self._members.clear()
        for member in members:
            member.stop()
        for member in members:
            await member.wait_stopped()

    def _live(self, model: str) -> list[tuple[Member, WorkerLink]]:
        return [
            (member, link)
            for member in self._members.values()
            if member.endpoint.model == model and (link := member.live_link) is not None
        ]

    def _dismiss(self, member: Member, *, has_successor: bool) -> None:
        """One that another incarnation replaces has been fenced off: its answers count no more."""
        if has_successor:
            member.stop()
        else:
            member.retire()
        self._retired.append(member)

    async def _learn(self, link: WorkerLink) -> None:
        """Build the model's text from the first card; refuse a worker whose card is another's."""
        model, card = link.hello.model, await link.describe()
        if card.model != model:
            raise ProtocolError(f"it serves {model!r} but describes {card.model!r}")
        async with self._learning:
            known = self._texts.get(model)
            if known is not None and known.card == card:
                return
            if known is not None and self._live(model):
                raise ProtocolError(
                    f"its tokenizer or chat template of {model!r} differs from that of the workers which "
                    "serve it already; give every worker the same source"
                )
            self._texts[model] = await asyncio.to_thread(
                ModelText, card, self._tool_formats.get(model, "auto")
            )

    def _unserved(self, model: str) -> Exception:
        if model not in self._known_models:
            return unknown_model(model, self._known_models)
        return NoWorker(
            f"no worker that serves {model!r} is alive now; try again in {RETRY_AFTER_S:.0f} s",
            param="model",
            retry_after_s=RETRY_AFTER_S,
        )
