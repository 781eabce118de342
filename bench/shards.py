"""A model in shards against the whole: decode steps, control traffic and the share of collectives.

    python bench/shards.py [--rounds N] [--json FILE] [--check]

Ranks are processes of this machine with one thread each; the whole model is measured with one thread, as what
each rank has, and with one for every core, as what the machine has; sides are stepped in turns. `--check`
exits with 1 if shared memory does not carry a sum faster than gloo, or if telling the followers what to do
takes more than a hundredth of a step.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from report import Report, arguments_parser

from workers.config import Collectives, EngineConfig, WorkerConfig
from workers.engine import Engine
from workers.load.model import LoadedModel, PartLoader, load_model
from workers.sampling.params import SamplingParams
from workers.shards.gang import follow, lead
from workers.shards.leader import GangDecoder
from workers.shards.meeting import Address, Meeting, Members, join
from workers.shards.messages import Stop
from workers.shards.transport import Transport
from workers.wire import Submit

SOURCE = "builtin:smollm2-135m"
PROMPT_TOKENS, STEPS = 64, 32
BATCHES = (1, 8)
MAX_CONTROL_SHARE = 0.01  # of a step
context = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Side:
    tensor: int
    pipeline: int
    threads: int
    collectives: Collectives = "auto"

    def config(self) -> WorkerConfig:
        engine = EngineConfig(
            weights="bf16",
            kernels="torch" if self.collectives == "torch" else "auto",
            kv_memory_bytes=64 << 20,
            target_step_s=10.0,
            threads=self.threads,
            tensor=self.tensor,
            pipeline=self.pipeline,
            collectives=self.collectives,
        )
        return WorkerConfig("bench", 1, "smollm2-135m", SOURCE, "unified", engine, secret=b"bench")


BASE = Side(1, 1, 1)
OTHERS = {
    "whole, all cores": Side(1, 1, os.cpu_count() or 1),
    "tensor 2": Side(2, 1, 1),
    "pipeline 2": Side(1, 2, 1),
}


def _follow(config: WorkerConfig, rank: int, address: Address) -> None:
    follow(config, address, rank, lambda error: os._exit(1)).run()


class Served:
    """An engine and, if it has some, its followers."""

    def __init__(self, side: Side) -> None:
        config = side.config()
        self._followers: list[Any] = []
        self.gang: GangDecoder | None = None
        if config.engine.num_ranks == 1:
            model = load_model(SOURCE, "bf16", name=config.model, kernels=config.engine.kernels)
        else:
            model = self._gather(config)
        self.engine = Engine(model, config.engine, b"bench")
        self._threads = side.threads
        self.stepped_s = 0.0
        self.engine.warm_up()

    def _gather(self, config: WorkerConfig) -> LoadedModel:
        meeting = Meeting(config.host, config.secret, config.epoch)
        for rank in range(1, config.engine.num_ranks):
            follower = context.Process(target=_follow, args=[config, rank, meeting.address])
            follower.start()
            self._followers.append(follower)
        model = lead(config, meeting, lambda error: os._exit(1))
        assert isinstance(model.decoder, GangDecoder)
        self.gang = model.decoder
        return model

    def decode_ms(self, batch: int, tag: str) -> list[float]:
        """Of each decode step of the whole batch."""
        torch.set_num_threads(self._threads)
        params = SamplingParams(max_tokens=STEPS + 8, temperature=0.0, ignore_eos=True)
        for index in range(batch):
            prompt = [100 + (31 * index + 7 * place + len(tag)) % 40_000 for place in range(PROMPT_TOKENS)]
            self.engine.submit(Submit(f"{tag}-{index}", prompt, params, salt=tag.encode()))
        taken_ms = []
        while self.engine.has_work:
            started = time.perf_counter()
            output = self.engine.step()
            elapsed_s = time.perf_counter() - started
            self.stepped_s += elapsed_s
            if output.num_decodes == batch:
                taken_ms.append(elapsed_s * 1e3)
        return taken_ms

    def close(self) -> None:
        if self.gang is not None:
            self.gang.close()
        for follower in self._followers:
            follower.join(10)


class Traffic:
    """What the leader told its followers, and how long it was in collectives, while its engine ran."""

    def __init__(self, served: Served) -> None:
        assert served.gang is not None
        self._served, self._gang = served, served.gang
        self._before = self._now()

    def _now(self) -> tuple[float, ...]:
        gang = self._gang
        num_bytes = gang.num_announced_bytes / gang.num_followers
        waited_s = sum(gang.waited_s.values())
        return gang.num_announced, num_bytes, gang.announced_s, waited_s, self._served.stepped_s

    def taken(self) -> list[float]:
        """Messages, bytes to one follower, seconds of telling, in collectives and in all."""
        return [now - then for now, then in zip(self._now(), self._before, strict=True)]


SUMS = ((1, 400), (64, 100))  # rows, and how often they are summed


def _sum_all(config: WorkerConfig, rank: int, members: Members) -> dict[int, float]:
    """Median microseconds of a sum over two lanes, in fp32 of the model's width, by the number of rows."""
    torch.set_num_threads(1)
    loader = PartLoader.open(SOURCE, config.engine)
    lanes = Transport(loader.cut, rank, members, config.engine, torch.device("cpu")).lanes()
    assert lanes is not None
    found = {}
    for num_rows, count in SUMS:
        x, taken = torch.ones(num_rows, loader.cut.whole.hidden_size), []
        for _ in range(count):
            started = time.perf_counter()
            lanes.reduce(x)
            taken.append((time.perf_counter() - started) * 1e6)
        found[num_rows] = statistics.median(taken)
    return found


def _sum_along(config: WorkerConfig, address: Address) -> None:
    members = join(address, config.secret, 1)
    _sum_all(config, 1, members)
    members.steps[0].receive(60.0)


def sums_us(collectives: Collectives) -> dict[int, float]:
    config = Side(2, 1, 1, collectives).config()
    meeting = Meeting(config.host, config.secret, config.epoch)
    other = context.Process(target=_sum_along, args=[config, meeting.address])
    other.start()
    members = meeting.gather(2)
    found = _sum_all(config, 0, members)
    members.steps[1].send(Stop())
    other.join(10)
    members.close()
    return found


def compare_sums(rounds: int) -> Report:
    report = Report("sums over two lanes", ("shared memory", "gloo"))
    ways: tuple[Collectives, ...] = ("auto", "torch")
    found: dict[Collectives, list[dict[int, float]]] = {way: [] for way in ways}
    for round_ in range(rounds):
        for way in ways if round_ % 2 else ways[::-1]:
            found[way].append(sums_us(way))
    for num_rows, _ in SUMS:
        ours, theirs = ([each[num_rows] for each in found[way]] for way in ways)
        figure = report.compare(f"{num_rows} row{'s' if num_rows > 1 else ''}", "µs", ours, theirs)
        report.bar(f"{num_rows} rows, gloo to shared memory", 1 / figure.ratio, "≥", 1.0)
    return report


def compare_steps(name: str, base: Served, other: Served, rounds: int) -> Report:
    report = Report(f"decode steps, {name} against the whole with one thread", (name, "whole"))
    for batch in BATCHES:
        ours: list[float] = []
        theirs: list[float] = []
        traffic = None if other.gang is None else Traffic(other)
        for round_ in range(rounds + 1):
            sides = [(base, theirs), (other, ours)]
            for served, values in sides if round_ % 2 else sides[::-1]:
                taken_ms = served.decode_ms(batch, f"{name}-{batch}-{round_}")
                if round_ > 0:
                    values.append(statistics.median(taken_ms))
        streams = f"{batch} stream{'s' if batch > 1 else ''}"
        report.compare(f"step of {streams}", "ms", ours, theirs)
        if traffic is not None:
            num_messages, num_bytes, telling_s, waiting_s, total_s = traffic.taken()
            report.fact(f"{streams}: bytes to each follower per step", round(num_bytes / num_messages))
            report.fact(f"{streams}: µs of telling per step", round(telling_s / num_messages * 1e6, 1))
            report.fact(f"{streams}: share of time in collectives", round(waiting_s / total_s, 3))
            report.bar(f"{streams}: share of time telling", telling_s / total_s, "≤", MAX_CONTROL_SHARE)
    return report


def main() -> int:
    arguments = arguments_parser(__doc__ or "", rounds=5).parse_args()
    status = compare_sums(max(arguments.rounds // 2, 1)).finish(arguments, part="sums")
    base = Served(BASE)
    for name, side in OTHERS.items():
        other = Served(side)
        try:
            status |= compare_steps(name, base, other, arguments.rounds).finish(arguments, part=name)
        finally:
            other.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
