"""A Ray of two nodes on this machine, the application on it, and what it tells Prometheus."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

ROOT = Path(__file__).resolve().parents[1]
_MEMORY = 200 << 20  # bytes of Ray's store of objects
_NODE = {"num_cpus": 2, "node_ip_address": "127.0.0.1", "object_store_memory": _MEMORY}
_SAMPLE = re.compile(r"^(ray_remora_\w+?)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(phase|result|status|kind)="(\w*)"')


class Service:
    """The application on a cluster of two nodes, which may lose a part of itself.

    Args:
        arguments: of `extension.serve.service.build`.
        way: a name in `_serve_ways.WAYS`.
    """

    def __init__(self, arguments: Mapping[str, Any], way: str = "mixed") -> None:
        import ray
        from _serve_ways import WAYS
        from ray import serve
        from ray.cluster_utils import Cluster

        from extension.serve import service

        self._cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
        self._second = self._cluster.add_node(**_NODE)
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="error")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        self._arguments = dict(arguments)
        with mock.patch.object(service, "ModelReplica", WAYS[way]):
            serve.run(service.build(self._arguments), name="remora", route_prefix="/")

    def restart(self) -> None:
        """Deploy the application with other settings: Ray starts each of its processes again."""
        from ray import serve

        from extension.serve import service

        self._arguments["model"] = {**self._arguments["model"], "gather": 0.021}
        self._arguments["ingress"] = {"seconds": 590.0}
        serve.run(service.build(self._arguments), name="remora", route_prefix="/")

    def kill_replica(self) -> None:
        """Kill one replica of the model."""
        import ray

        named = [one for one in ray.util.list_named_actors(all_namespaces=True) if "#ModelReplica#" in one["name"]]
        ray.kill(ray.get_actor(named[0]["name"], named[0]["namespace"]), no_restart=True)

    def kill_node(self) -> None:
        """Kill the second node with all that runs on it, and add another one."""
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = self._cluster.add_node(**_NODE)

    def metrics(self) -> Counter[str]:
        """Return the sum of each metric over all nodes, by its name and its phase, result, status or kind."""
        import ray

        found: Counter[str] = Counter()
        for port in {node["MetricsExportPort"] for node in ray.nodes() if node["Alive"]}:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            for name, labels, value in _SAMPLE.findall(text):
                label = _LABEL.search(labels)
                found[f"{name.removeprefix('ray_remora_')} {label[2] if label else ''}".strip()] += float(value)  # type: ignore[assignment]  # counts of seconds
        return found

    @staticmethod
    def memory() -> dict[int, int]:
        """Return the bytes of each replica of the model, by the id of its process."""
        found = {}
        for process in psutil.Process().children(recursive=True):
            try:
                if "ModelReplica" in " ".join(process.cmdline()):
                    found[process.pid] = process.memory_info().rss
            except (psutil.NoSuchProcess, psutil.ZombieProcess):  # it ended meanwhile
                continue
        return found

    def close(self) -> None:
        """End everything."""
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()
        self._cluster.shutdown()


@contextmanager
def serving(arguments: Mapping[str, Any], way: str = "mixed") -> Iterator[Service]:
    """Serve the application."""
    paths = [str(ROOT), str(ROOT / "benchmarks"), *filter(None, sys.path)]
    wanted = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    with mock.patch.dict(os.environ, {**wanted, "PYTHONPATH": os.pathsep.join(paths)}):
        service = Service(arguments, way)
        try:
            yield service
        finally:
            service.close()


def start_load(config: Path, users: int, seconds: float) -> subprocess.Popen[bytes]:
    """Start Locust on the load that a JSON file describes."""
    program = str(Path(__file__).with_name("_serve_load.py"))
    command = [sys.executable, "-m", "locust", "-f", program, "--headless", "--only-summary", "--stop-timeout", "120"]
    command += ["-u", str(users), "-r", str(users), "-t", f"{max(round(seconds), 1)}s", "--loglevel", "ERROR"]
    environment = {**os.environ, "REMORA_LOAD": str(config), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
