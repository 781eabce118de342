"""A whole cluster on this machine: Ray, the controller with its workers, the router behind its proxy.

Started in the order in which things take time, so that workers load while Serve comes up. `stop` ends every
process that was started, whatever state it is in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.membership import NAME, NAMESPACE
from cluster.spec import ClusterSpec
from deploy import environment, processes
from deploy.environment import Ingress
from workers.errors import ConfigError

OBJECT_STORE_BYTES = 80 << 20  # Ray's least: neither tokens nor KV pass through it
POLL_S = 0.1
STOP_WORKERS_S, STOP_RAY_S, END_S = 2.0, 2.0, 0.5


class LocalCluster:
    """`report` hears, in words, of every stage that is reached."""

    def __init__(self, spec: ClusterSpec, report: Callable[[str], None]) -> None:
        self._spec = spec
        self._report = report
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-"))
        self._ray: Any = None  # the module, once it is imported whole
        self._controller: Any = None
        self._ingress = Ingress.DIRECT

    @property
    def url(self) -> str:
        http = self._spec.http
        return f"http://{'127.0.0.1' if http.host == '0.0.0.0' else http.host}:{http.port}"

    def start(self) -> None:
        """Return when every worker is ready and the endpoint answers. Raises ConfigError."""
        processes.adopt_orphans()
        http, num_replicas = self._spec.http, self._spec.router.replicas
        self._ingress = environment.prepare(self._folder, http.port, num_replicas)
        self._start_ray()
        self._report("Ray is up")
        self._start_workers()
        self._start_router()
        replicas = f"{num_replicas} replica{'s' if num_replicas > 1 else ''}"
        self._report(f"router is up: {replicas} {self._ingress.value}")
        self._wait_ready()

    def stop(self) -> None:
        """Stop what was started and end what does not stop. Twice is harmless."""
        ray, self._ray = self._ray, None
        if ray is not None and self._controller is not None:
            _bounded(lambda: ray.get(self._controller.stop.remote(), timeout=STOP_WORKERS_S), STOP_WORKERS_S)
        if ray is not None:
            _bounded(ray.shutdown, STOP_RAY_S)
        processes.end_all(END_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start_ray(self) -> None:
        import ray

        self._ray = ray
        ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, 2),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            namespace="headrace",
            logging_level="ERROR",
        )

    def _start_workers(self) -> None:
        from cluster.controller import Controller

        secret = secrets.token_bytes(32)
        configs = self._spec.worker_configs(secret, os.cpu_count() or 1)
        self._secret = secret
        self._controller = (
            self._ray.remote(Controller)
            .options(name=NAME, namespace=NAMESPACE, num_cpus=0, max_restarts=-1, max_concurrency=1000)
            .remote(configs)
        )

    def _start_router(self) -> None:
        from ray import serve

        from router.app import Router
        from router.config import RouterConfig

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        http = self._spec.http
        config = RouterConfig(
            models=tuple(model.name for model in self._spec.models),
            secret=self._secret,
            max_body_bytes=self._spec.router.limits.body,
            tool_formats={model.name: model.tool_format for model in self._spec.models},
        )
        deployment: Any = Router
        # With direct ingress the replica itself has the endpoint's port, and Serve's proxy idles elsewhere.
        (elsewhere,) = environment.free_ports(1)
        port = elsewhere if self._ingress is Ingress.DIRECT else http.port
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": http.host, "port": port},
            logging_config={"log_level": "ERROR", "enable_access_log": False},
        )
        serve.run(
            deployment.options(num_replicas=self._spec.router.replicas).bind(config),
            name="headrace",
            route_prefix="/",
        )

    def _wait_ready(self) -> None:
        """Until every worker is ready and the router can reach one of them."""
        seen: dict[str, str] = {}
        while True:
            workers = self._ray.get(self._controller.status.remote())
            for worker in workers:
                name, state = worker["worker_id"], worker["state"]
                if state == "failed":
                    raise ConfigError(worker["reason"])
                if seen.get(name) != state and state in ("ready", "backing off"):
                    reason = f" ({worker['reason']})" if state == "backing off" else ""
                    self._report(f"worker {name} is {state}{reason}")
                seen[name] = state
            if all(worker["state"] == "ready" for worker in workers) and self._answers():
                return
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        """Whether the endpoint says so, often enough that every replica is likely to have been asked."""
        for _ in range(3 * self._spec.router.replicas):
            try:
                with urllib.request.urlopen(f"{self.url}/ready", timeout=2) as response:
                    if response.status != 200:
                        return False
            except (urllib.error.URLError, OSError):
                return False
        return True


def _bounded(work: Callable[[], Any], timeout_s: float) -> None:
    """Do it, but give up on it after `timeout_s`; what it raises does not matter any more."""

    def run() -> None:
        with contextlib.suppress(BaseException):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
