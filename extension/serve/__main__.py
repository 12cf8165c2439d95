"""Serve the embedded web UI's API to many users: `python -m extension.serve --model MODEL --lora-dir LORAS`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..addresses import is_loopback
from ..standalone.layout import find_model
from .keys import read_keys

ROOT = Path(__file__).resolve().parents[2]
_MEMORY = 512 << 20
"""Bytes of Ray's store of objects, through which requests and pictures go."""

logger = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python install.py serve",
        description="Serve the embedded web UI's API by Ray Serve. Where RAY_ADDRESS is set, it joins that cluster.",
    )
    made.add_argument("--model", help="diffusers folder or .safetensors file, on every machine (default: the demo's)")
    made.add_argument("--lora-dir", action="append", default=[], help="folder of LoRA, on every machine; repeatable")
    made.add_argument("--replicas", type=int, default=1, help="copies of the model (default: 1)")
    made.add_argument("--gpus", type=float, default=0.0, help="GPUs of each replica, 0.5 shares one (default: 0)")
    made.add_argument("--host", default="127.0.0.1", help="address to serve on (default: this machine only)")
    made.add_argument("--port", type=int, default=8000)
    made.add_argument(
        "--metrics-port", type=int, default=0, help="port of the metrics for Prometheus on this machine (default: any)"
    )
    made.add_argument("--keys", type=Path, help="file with a line user:key for each user")
    made.add_argument("--without-login", action="store_true", help="require no key, also from other machines")
    made.add_argument("--device", default="auto", help="auto, cpu, cuda, mps, xpu")
    made.add_argument("--dtype", default="auto", choices=("auto", "float32", "float16", "bfloat16"))
    made.add_argument("--batch", type=int, default=8, help="pictures of one batch (default: 8)")
    made.add_argument("--waiting", type=int, default=200, help="requests that may wait (default: 200)")
    made.add_argument("--timeout", type=float, default=600.0, help="seconds that a request may take (default: 600)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run until interrupted; return the exit status."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if not (is_loopback(arguments.host) or arguments.keys or arguments.without_login):
        text = (
            f"other machines reach {arguments.host}; add --keys FILE, or --without-login to let in everybody who does"
        )
        print(f"error: {text}", file=sys.stderr)
        return 2
    try:
        logins = read_keys(arguments.keys) if arguments.keys else ()
        model = str(find_model(Path(arguments.model)).resolve()) if arguments.model else ""
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return _serve(arguments, model, logins)


def _serve(arguments: argparse.Namespace, model: str, logins: Sequence[str]) -> int:
    joins = bool(os.environ.get("RAY_ADDRESS"))
    if not joins:  # or Ray takes the address of this machine in a network, and its ports are open there
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray
    from ray import serve

    from .service import NAME, build

    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    own: dict[str, Any] = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "object_store_memory": _MEMORY}
    if arguments.metrics_port:
        own["_metrics_export_port"] = arguments.metrics_port
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": path}}, log_to_driver=False, **({} if joins else own))
    serve.start(proxy_location="EveryNode", http_options={"host": arguments.host, "port": arguments.port})
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        serve.run(build(_settings(arguments, model, logins)), name=NAME, route_prefix="/")
        logger.info("serving on http://%s:%d/sdapi/v1", arguments.host, arguments.port)
        for node in [node for node in ray.nodes() if node["Alive"]]:
            logger.info("metrics on http://%s:%d/metrics", node["NodeManagerAddress"], node["MetricsExportPort"])
        ended.wait()
    finally:
        serve.delete(NAME)
        ray.shutdown()
    return 0


def _settings(arguments: argparse.Namespace, model: str, logins: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `service.build`."""
    folders = [str(Path(folder).expanduser().resolve()) for folder in arguments.lora_dir]
    return {
        "model": {
            "model": model,
            "lora_dirs": folders,
            "device": arguments.device,
            "dtype": arguments.dtype,
            "most_pictures": arguments.batch,
        },
        "ingress": {"address": arguments.host, "logins": list(logins), "seconds": arguments.timeout},
        "replicas": arguments.replicas,
        "resources": {"num_cpus": 1, "num_gpus": arguments.gpus},
        "waiting": arguments.waiting,
    }


if __name__ == "__main__":
    sys.exit(main())
