"""What a bench asks of an endpoint before it measures: the model, how it counts tokens, and some warm-up."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import aiohttp

from deploy.bench.client import Client, Target
from deploy.bench.request import BenchRequest
from deploy.bench.words import TextScale, random_words
from workers.errors import HeadraceError

ASK_S = 10.0
_FEW_WORDS, _MANY_WORDS = 16, 144
_WARM_UP_TOKENS = 16


class Unusable(HeadraceError):
    """The endpoint does not answer, or not as an OpenAI endpoint does."""


async def first_model(target: Target) -> str:
    """The first model that the endpoint lists. Raises Unusable."""
    url = target.url.rstrip("/").removesuffix("/v1") + "/v1/models"
    headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(url) as response,
        ):
            listed = (await response.json(content_type=None))["data"]
            return str(listed[0]["id"])
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unusable(
            f"no answer from {url}: {error or type(error).__name__}; is the server running there?"
        ) from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Unusable(
            f"{url} lists no model; is this an OpenAI-compatible endpoint? Name one with --model"
        ) from error


async def prepare(client: Client, seed: int, num_warmups: int) -> TextScale:
    """Two prompts to learn how the server counts, then warm-up requests. Raises Unusable."""
    counted = [await _count(client, seed, num_words) for num_words in (_FEW_WORDS, _MANY_WORDS)]
    scale = TextScale.fitted((_FEW_WORDS, counted[0]), (_MANY_WORDS, counted[1]))
    texts = [
        random_words(random.Random(f"{seed}-warm-up-{number}"), _MANY_WORDS) for number in range(num_warmups)
    ]
    await asyncio.gather(*(client.send(BenchRequest((text,), _WARM_UP_TOKENS)) for text in texts))
    return scale


async def target_of(target: Target) -> Target:
    """The target with its model filled in. Raises Unusable."""
    return target if target.model else replace(target, model=await first_model(target))


async def _count(client: Client, seed: int, num_words: int) -> int:
    text = random_words(random.Random(f"{seed}-scale-{num_words}"), num_words)
    [record] = await client.send(BenchRequest((text,), 1))
    if record.error is not None:
        raise Unusable(f"the first request failed: {record.error}")
    return record.num_input_tokens or num_words
