"""A gang whose ranks are threads of this process: real links, memory and collectives, no time for processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workers.driver import Driver
from workers.config import EngineConfig, WorkerConfig
from workers.load.model import LoadedModel
from workers.shards.gang import follow, lead
from workers.shards.leader import GangDecoder
from workers.shards.meeting import Meeting

SECRET = b"the cluster's secret"
JOIN_S = 30.0


def worker_config(source: str, **engine: object) -> WorkerConfig:
    return WorkerConfig(
        worker_id="w",
        epoch=1,
        model="tiny",
        source=source,
        role="unified",
        engine=EngineConfig(**{"threads": 1, **engine}),  # type: ignore[arg-type]
        secret=SECRET,
    )


@contextmanager
def gang(source: str, **engine: object) -> Iterator[LoadedModel]:
    """The model as rank 0 has it. On the way out the ranks are dissolved, and must have ended well."""
    config = worker_config(source, **engine)
    meeting = Meeting(config.host, config.secret, config.epoch)
    faults: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            follow(config, meeting.address, rank, faults.append).run()
        except BaseException as error:
            faults.append(error)
            meeting.close()

    followers = [threading.Thread(target=run, args=[rank]) for rank in range(1, config.engine.num_ranks)]
    for follower in followers:
        follower.start()
    try:
        model = lead(config, meeting, faults.append)
    except BaseException as error:
        raise (faults or [error])[0] from error
    assert isinstance(model.decoder, GangDecoder)
    yield model
    model.decoder.close()
    for follower in followers:
        follower.join(JOIN_S)
    assert not faults, faults


@contextmanager
def driver_of_gang(source: str, engine: dict[str, object], **limits: object) -> Iterator[Driver]:
    """`engine` says what the ranks are, `limits` what the engine may do."""
    with gang(source, **engine, **limits) as model:
        yield Driver(model, **{"threads": 1, **limits})
