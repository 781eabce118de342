"""Compiles grammars beside the engine, never on its thread: bounded in time, a few at once, each once.

What many requests share, as an application's schemas are, is compiled for the first of them. Runs on the
event loop of the wire server; the tokenizer's tables are built when the first grammar comes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from workers.errors import GrammarError, Overloaded
from workers.sampling.grammar import Grammar, GrammarCompiler
from workers.sampling.params import GrammarSpec

COMPILE_S = 5.0
MAX_WAITING = 256
NUM_THREADS = 2
NUM_KEPT = 128


class Grammars:
    """Of one model. `build` makes the compiler and is called once, on a thread."""

    def __init__(self, build: Callable[[], GrammarCompiler]) -> None:
        self._build = build
        self._compiler: asyncio.Task[GrammarCompiler] | None = None
        self._threads = ThreadPoolExecutor(NUM_THREADS, "grammar")
        self._kept: OrderedDict[GrammarSpec, Grammar] = OrderedDict()
        self._num_waiting = 0

    async def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar at its beginning; fork it before it accepts anything.

        Raises GrammarError if there is none or it takes longer than COMPILE_S, Overloaded if too many wait.
        """
        kept = self._kept.get(spec)
        if kept is not None:
            self._kept.move_to_end(spec)
            return kept
        if self._num_waiting >= MAX_WAITING:
            raise Overloaded(
                f"{self._num_waiting} grammars wait to be compiled, the limit; send the request again",
                retry_after_s=1.0,
            )
        self._num_waiting += 1
        try:
            async with asyncio.timeout(COMPILE_S):
                grammar = await self._compiled(spec)
        except TimeoutError:
            raise GrammarError(
                f"this {spec.kind} was not compiled within {COMPILE_S:.0f} s; make it simpler"
            ) from None
        finally:
            self._num_waiting -= 1
        self._kept[spec] = grammar
        if len(self._kept) > NUM_KEPT:
            self._kept.popitem(last=False)
        return grammar

    def close(self) -> None:
        """Compile nothing more. Closing twice is harmless."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _compiled(self, spec: GrammarSpec) -> Grammar:
        loop = asyncio.get_running_loop()
        if self._compiler is None or (self._compiler.done() and self._compiler.exception() is not None):
            self._compiler = asyncio.ensure_future(self._built())
        compiler = await asyncio.shield(self._compiler)
        return await loop.run_in_executor(self._threads, compiler.compile, spec)

    async def _built(self) -> GrammarCompiler:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._build)
