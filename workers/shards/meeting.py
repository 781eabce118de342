"""How the ranks of a gang find each other: through the leader, on ports that the system chooses.

The leader listens on its host for its followers' links, and keeps torch.distributed's store there as well. A
follower proves that it knows the cluster's secret, and is of the same epoch, before it counts as one.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import Store, TCPStore

from workers.errors import GangLost
from workers.shards import shared
from workers.shards.links import Link
from workers.shards.messages import Greeting, Join, Purpose, Roster, Seat
from workers.wire import authenticate

HANDSHAKE_S = 10.0
MEETING_S = 300.0  # ranks are started together, but on hosts of different speed
PURPOSES: tuple[Purpose, ...] = ("steps", "pulse")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the leader of one incarnation is found."""

    host: str
    port: int
    store_port: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Members:
    """A gang that has met: of the leader, links to every follower by rank; of a follower, those to rank 0."""

    seats: list[Seat]
    steps: dict[int, Link]
    pulses: dict[int, Link]
    store: Store
    host: str

    def killable(self, rank: int) -> dict[int, int]:
        """Pids of the linked ranks that run beside `rank`."""
        machine = self.seats[rank].machine
        return {other: self.seats[other].pid for other in self.steps if self.seats[other].machine == machine}

    def close(self) -> None:
        for link in [*self.steps.values(), *self.pulses.values()]:
            link.close()


class Meeting:
    """The leader's side, open from its making on."""

    def __init__(self, host: str, secret: bytes, epoch: int) -> None:
        self._secret = secret
        self._listener = socket.create_server((host, 0), family=_family(host), backlog=128)
        store = socket.create_server((host, 0), family=_family(host), backlog=128)
        store_port = int(store.getsockname()[1])
        self._store = TCPStore(
            host,
            store_port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=MEETING_S),
            master_listen_fd=store.detach(),
        )
        self.address = Address(host, int(self._listener.getsockname()[1]), store_port, epoch)

    def gather(self, num_ranks: int) -> Members:
        """Wait for every follower. Raises GangLost if some did not come within MEETING_S."""
        deadline_s = time.monotonic() + MEETING_S
        seats: dict[int, Seat] = {0: _own_seat()}
        links: dict[Purpose, dict[int, Link]] = {purpose: {} for purpose in PURPOSES}
        try:
            while any(len(found) < num_ranks - 1 for found in links.values()):
                self._accept(deadline_s, num_ranks, seats, links)
        except OSError:  # also when it was closed meanwhile
            missing = sorted(set(range(1, num_ranks)) - set(links["steps"]))
            raise GangLost(f"ranks {missing} did not come within {MEETING_S:.0f} s") from None
        finally:
            self.close()
        roster = [seats[rank] for rank in range(num_ranks)]
        for link in links["steps"].values():
            link.send(Roster(roster))
        return Members(roster, links["steps"], links["pulse"], self._store, self.address.host)

    def close(self) -> None:
        """Nobody is waited for any longer. Closing twice is harmless."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(
        self,
        deadline_s: float,
        num_ranks: int,
        seats: dict[int, Seat],
        links: dict[Purpose, dict[int, Link]],
    ) -> None:
        self._listener.settimeout(max(deadline_s - time.monotonic(), 0.001))
        sock, _ = self._listener.accept()
        link = Link(sock, "a rank that joins")
        nonce = secrets.token_bytes(16)
        with contextlib.suppress(GangLost):  # whoever it was, it was no rank of this gang
            link.send(Greeting(nonce))
            join = link.expect(Join, HANDSHAKE_S)
            is_known = hmac.compare_digest(join.mac, authenticate(self._secret, nonce))
            if is_known and join.epoch == self.address.epoch and 0 < join.rank < num_ranks:
                link.peer = f"rank {join.rank}"
                links[join.purpose][join.rank] = link
                seats[join.rank] = Seat(join.machine, join.shares, join.pid)
                return
        link.close()


def join(address: Address, secret: bytes, rank: int) -> Members:
    """The follower's side. Raises GangLost if the leader cannot be reached, or a rank does not come."""
    links = {purpose: _join(address, secret, rank, purpose) for purpose in PURPOSES}
    roster = links["steps"].expect(Roster, MEETING_S)
    store = TCPStore(
        address.host,
        address.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=MEETING_S),
    )
    return Members(roster.seats, {0: links["steps"]}, {0: links["pulse"]}, store, _own_host(address))


def _join(address: Address, secret: bytes, rank: int, purpose: Purpose) -> Link:
    try:
        sock = socket.create_connection((address.host, address.port), timeout=HANDSHAKE_S)
    except OSError as error:
        raise GangLost(f"the leader at {address.host}:{address.port} cannot be reached: {error}") from error
    link = Link(sock, "the leader")
    nonce = link.expect(Greeting, MEETING_S).nonce  # the leader may be slower to come than its address
    seat = _own_seat()
    mac = authenticate(secret, nonce)
    link.send(Join(rank, address.epoch, purpose, mac, seat.machine, seat.shares, seat.pid))
    return link


def _own_seat() -> Seat:
    return Seat(shared.machine_id(), shared.is_available(), os.getpid())


def _own_host(address: Address) -> str:
    """The address by which this host reaches the leader, and by which others may reach this host."""
    with socket.socket(_family(address.host), socket.SOCK_DGRAM) as probe:
        probe.connect((address.host, address.port))
        return str(probe.getsockname()[0])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
