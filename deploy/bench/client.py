"""The load client: streams from any OpenAI-compatible endpoint and notes when what arrived.

While a stream runs, each piece that arrives costs one clock reading and one append. What fails is a record
with an error, never an exception.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import aiohttp

from deploy.bench.record import Arrivals, Record, error_message
from deploy.bench.request import BenchRequest

Api = Literal["chat", "completions"]
PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Target:
    """Which model is asked where, and how."""

    url: str
    model: str
    api: Api = "chat"
    ignores_eos: bool = True
    api_key: str | None = None
    timeout_s: float = 600.0


class Client:
    """One connection pool to one endpoint; to be entered before use."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._url = target.url.rstrip("/").removesuffix("/v1") + PATHS[target.api]
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        key = self._target.api_key
        self._session = aiohttp.ClientSession(
            # Some servers close a connection after a stream, under the next request that was sent on it.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=self._target.timeout_s),
            headers={
                "content-type": "application/json",
                **({"authorization": f"Bearer {key}"} if key else {}),
            },
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, request: BenchRequest) -> list[Record]:
        """Hold the conversation; one record per turn, up to the first that fails."""
        messages: list[dict[str, str]] = []
        records: list[Record] = []
        for turn in request.turns:
            messages.append({"role": "user", "content": turn})
            record = await self.stream(self._body(messages, request.max_tokens))
            records.append(record)
            if record.error is not None:
                break
            messages.append({"role": "assistant", "content": record.text})
        return records

    async def stream(self, body: dict[str, Any]) -> Record:
        """Send one body and note its answer."""
        assert self._session is not None, "the client must be entered first"
        data = json.dumps(body).encode()
        arrivals = Arrivals(time.perf_counter())
        error: str | None = None
        try:
            async with self._session.post(self._url, data=data) as response:
                if response.status == 200:
                    async for piece in response.content.iter_any():
                        arrivals.pieces.append((time.perf_counter(), piece))
                else:
                    error = f"HTTP {response.status}: {error_message(await response.read())}"
        except TimeoutError:
            error = f"no answer within {self._target.timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as reason:
            error = f"{type(reason).__name__}: {reason}"
        return arrivals.record(time.perf_counter(), error)

    def _body(self, messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
        body = self._common(max_tokens)
        if self._target.api == "chat":
            return {**body, "messages": messages}
        return {**body, "prompt": "\n\n".join(message["content"] for message in messages)}

    def _common(self, max_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._target.model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._target.ignores_eos:
            body["ignore_eos"] = True
        return body
