"""The router: a Ray Serve deployment that speaks OpenAI's REST API in front of the workers.

This file binds HTTP to the rest of the router and decides nothing. Requests are read as raw bytes, so that
the size limit holds before anything is parsed and every error has OpenAI's shape.

Serve copies this module's functions by value while it is still being imported: helpers must come from
other modules, and annotations must be evaluated here (no `from __future__ import annotations`).
"""

import asyncio
import contextlib
import itertools
import logging
import random
import time

import msgspec
from fastapi import FastAPI, Request
from ray import serve
from starlette.exceptions import HTTPException
from starlette.responses import Response

from router import exposition
from router.api.document import document_body
from router.api.models import model_body, models_body
from router.api.writer import new_id
from router.config import RouterConfig
from router.control import IDLE_PUSH_S, PUSH_S, Control
from router.endpoint import CHAT, COMPLETIONS, DETOKENIZE, TOKENIZE, Endpoint, Query
from router.exchange import Exchange
from router.fleet import Fleet
from router.http import aside, failure, guarded, json_response, no_route, read_body
from router.metrics import UNKNOWN_MODEL, RequestMeter, RouterMetrics
from router.placement import LeastLoaded
from workers.errors import HeadraceError, NoWorker

logger = logging.getLogger(__name__)

MAX_ONGOING_REQUESTS = 10_000  # the workers' queues are the place to wait, not Serve's

api = FastAPI(title="Headrace", docs_url=None, redoc_url=None, openapi_url=None)
api.add_exception_handler(HTTPException, no_route)


@serve.deployment(
    name="router",
    max_ongoing_requests=MAX_ONGOING_REQUESTS,
    ray_actor_options={"num_cpus": 0},
    graceful_shutdown_timeout_s=0.5,
    logging_config={"log_level": "WARNING", "enable_access_log": False},
)
@serve.ingress(api)
class Router:
    """One replica."""

    async def __init__(self, config: RouterConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        self._config = config
        self._replica = serve.get_replica_context().replica_id.unique_id
        self._control = Control()
        self._metrics = RouterMetrics(self._replica)
        self._request_ids = (f"{self._replica}-{number}" for number in itertools.count())
        self._fleet = Fleet(
            self._replica, config.secret, LeastLoaded(random.Random()), config.models, config.tool_formats
        )
        self._tasks = [
            asyncio.create_task(self._fleet.follow(self._control.membership)),
            asyncio.create_task(self._push()),
        ]

    @api.post("/v1/chat/completions")
    async def chat_completions(self, request: Request) -> Response:
        return await self._answer(request, CHAT)

    @api.post("/v1/completions")
    async def completions(self, request: Request) -> Response:
        return await self._answer(request, COMPLETIONS)

    @api.post("/tokenize")
    async def tokenize(self, request: Request) -> Response:
        return await self._reply(request, TOKENIZE)

    @api.post("/detokenize")
    async def detokenize(self, request: Request) -> Response:
        return await self._reply(request, DETOKENIZE)

    @api.get("/openapi.json")
    async def openapi(self) -> Response:
        return json_response(document_body(tuple(card.model for card in self._fleet.cards)))

    @api.get("/v1/models")
    async def models(self) -> Response:
        return json_response(models_body(self._fleet.cards))

    @api.get("/v1/models/{model:path}")
    async def model(self, model: str) -> Response:
        with guarded() as answer:
            answer.response = json_response(model_body(self._fleet.card(model)))
        return answer.response

    @api.get("/health")
    async def health(self) -> Response:
        """This process answers."""
        return json_response(b'{"status":"ok"}')

    @api.get("/ready")
    async def ready(self) -> Response:
        """A worker has answered within the heartbeat."""
        if self._fleet.is_ready:
            return json_response(b'{"status":"ready"}')
        return failure(
            NoWorker("no worker has answered within the heartbeat; try again soon", retry_after_s=1.0)
        )

    @api.get("/status")
    async def status(self) -> Response:
        """Every worker's place, as the controller sees it."""
        with guarded() as answer:
            workers = await self._control.status()
            answer.response = json_response(
                msgspec.json.encode({"workers": workers, "router": self._replica})
            )
        return answer.response

    @api.get("/metrics")
    async def metrics(self) -> Response:
        """Everything there is to scrape, of all routers and workers; with the controller away, one's own."""
        texts = [self._metrics.exposition()]
        with contextlib.suppress(NoWorker):
            texts = await self._control.expositions(self._replica, texts[0])
        return Response(exposition.merge(texts), media_type=exposition.CONTENT_TYPE)

    async def _reply(self, request: Request, query: Query) -> Response:
        with guarded() as answer:
            body = await read_body(request, self._config.max_body_bytes)
            asked = await aside(len(body), query.parse, body)
            text, limits = self._fleet.model(asked.model)
            answer.response = json_response(await aside(len(body), query.reply, asked, text, limits))
        return answer.response

    async def _answer(self, request: Request, endpoint: Endpoint) -> Response:
        started_s = time.monotonic()
        model = UNKNOWN_MODEL
        try:
            body = await read_body(request, self._config.max_body_bytes)
            asked = await aside(len(body), endpoint.parse, body)
            text, limits = self._fleet.model(asked.model)
            model = asked.model
            prepared = await aside(len(body), endpoint.prepare, asked, text, limits)
        except Exception as error:
            if not isinstance(error, HeadraceError):
                logger.exception("a request could not be read for an unforeseen reason")
            response = failure(error)
            self._metrics.series(model, endpoint.name).count(response.status_code)
            return response
        return Exchange(
            prepared,
            text,
            endpoint.writer(prepared, text, new_id(endpoint.id_prefix), int(time.time())),
            lambda num_sequences, num_tokens: self._fleet.place(model, num_sequences, num_tokens),
            self._request_ids,
            RequestMeter(self._metrics.series(model, endpoint.name), started_s),
        )

    async def _push(self) -> None:
        """Tell the controller this replica's numbers, so that any replica can be asked for all of them."""
        told, told_s = -1, 0.0
        while True:
            num_changes, now_s = self._metrics.num_changes, time.monotonic()
            if num_changes != told or now_s - told_s > IDLE_PUSH_S:
                with contextlib.suppress(NoWorker):  # the controller is away; a later push will do
                    await self._control.push(self._replica, self._metrics.exposition())
                    told, told_s = num_changes, now_s
            await asyncio.sleep(PUSH_S)
