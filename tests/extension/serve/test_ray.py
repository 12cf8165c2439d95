"""The application on a real Ray of two nodes, all of them on this machine: what only several processes can show."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from extension.client import Client, ClientError, Generated

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed; requirements/serve.txt has it"
    ),
    pytest.mark.filterwarnings("ignore"),  # of Ray's own
    pytest.mark.long,
]
MEMORY = 200 << 20
ANN, BOB = "0123456789abcdef", "fedcba9876543210"
SMALL: dict[str, Any] = {"steps": 4, "width": 64, "height": 64}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve two replicas on a cluster of two nodes."""
    # or Ray would look for the address of this machine in a network
    before = {name: os.environ.get(name) for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "PYTHONPATH")}
    os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    from extension.serve.service import NAME, build

    node = {"num_cpus": 2, "node_ip_address": "127.0.0.1", "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        port = _free_port()
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        logins = [f"ann:{ANN}", f"bob:{BOB}"]
        model = {"gather": 0.2, "most_pictures": 2}
        application = build({"replicas": 2, "ingress": {"logins": logins}, "model": model, "waiting": 8})
        serve.run(application, name=NAME, route_prefix="/")
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@pytest.fixture
def ann(address: str) -> Client:
    return Client(address, ANN)


def replicas() -> list[Any]:
    import ray

    named = ray.util.list_named_actors(all_namespaces=True)
    return [ray.get_actor(one["name"], one["namespace"]) for one in named if "ModelReplica" in one["name"]]


def together(*asked: Callable[[], Generated]) -> list[Generated]:
    with ThreadPoolExecutor(len(asked)) as pool:
        return [one.result() for one in [pool.submit(ask) for ask in asked]]


def test_many_requests_with_lora_of_their_own_get_their_own_pictures(ann: Client, address: str) -> None:
    names = ("stars", "zorp", "neon", "night", "stripes", "outline")
    prompts = [f"a square <lora:{name}:0.{i}>" for i, name in enumerate(names * 2, 1)]
    made = together(
        *(
            lambda i=i, prompt=prompt: Client(address, (ANN, BOB)[i % 2]).txt2img(prompt, seed=i, **SMALL)
            for i, prompt in enumerate(prompts)
        )
    )
    for i, (prompt, found) in enumerate(zip(prompts, made, strict=True)):
        assert found.info["prompt"] == prompt
        assert found.info["seed"] == i
        assert [line.partition(":")[0].split()[0] for line in found.info["remora"]["loras"]] == [
            prompt.partition("<lora:")[2].partition(":")[0]
        ]


def test_a_request_of_a_replica_that_is_killed_is_made_again_and_told(ann: Client) -> None:
    import ray

    seen: list[float] = []
    made: list[Generated] = []
    fields = {**SMALL, "steps": 150}
    ask = threading.Thread(target=lambda: made.append(ann.txt2img("a square", seed=1, progress=seen.append, **fields)))
    ask.start()
    while not seen:
        time.sleep(0.05)
    victims = replicas()
    for victim in victims:
        ray.kill(victim, no_restart=True)
    ask.join(180)
    assert len(victims) == 2
    assert made[0].retried
    assert made[0].images


def test_a_full_queue_is_told(ann: Client, address: str) -> None:
    once = Client(address, ANN, tries=1)
    answers: list[object] = []

    def ask(i: int) -> None:
        try:
            answers.append(once.txt2img("a square", seed=i, **{**SMALL, "steps": 60}))
        except ClientError as error:
            answers.append((error.status, error.retry_after))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    refused = [answer for answer in answers if not isinstance(answer, Generated)]
    assert set(refused) == {(503, 5.0)}
    assert 0 < len(refused) < 60
    assert ann.txt2img("a square", **SMALL).images


def test_a_client_that_leaves_frees_the_replica(ann: Client, address: str) -> None:
    import httpx

    for _ in range(4):
        with pytest.raises(httpx.ReadTimeout), httpx.Client(timeout=1.0, headers=ann._headers) as client:
            client.post(f"{address}/sdapi/v1/txt2img", json={"prompt": "a", **SMALL, "steps": 150, "n_iter": 20})
    began = time.monotonic()
    assert ann.txt2img("a square", **SMALL).images
    assert time.monotonic() - began < 30


def test_prometheus_is_told_of_batches_their_lora_and_the_cache(ann: Client) -> None:
    import httpx
    import ray

    wanted = ("requests", "queue", "batch_requests", "batch_pictures", "batch_loras", "seconds", "lora_cache")
    text, end = "", time.monotonic() + 300
    while not all(f"ray_remora_{name}" in text for name in wanted) and time.monotonic() < end:
        ann.txt2img("a square <lora:stars:1>", **SMALL)
        ports = [node["MetricsExportPort"] for node in ray.nodes() if node["Alive"]]
        text = "".join(httpx.get(f"http://127.0.0.1:{port}/metrics").text for port in ports)
    assert [name for name in wanted if f"ray_remora_{name}" not in text] == []
    assert {'phase="queue"', 'phase="batch"', 'result="miss"', 'status="200"'} <= set(re.findall(r'\w+="\w+"', text))


def test_other_sites_and_unknown_users_are_refused(address: str) -> None:
    import httpx

    url = f"{address}/sdapi/v1/txt2img"
    key = {"Authorization": f"Bearer {ANN}"}
    assert httpx.post(url, json={}).status_code == 401
    assert httpx.post(url, json={}, headers={**key, "Origin": "https://elsewhere.example"}).status_code == 403
    assert httpx.post(url, json={}, headers={**key, "Host": "elsewhere.example"}).status_code == 403
    assert httpx.post(url, content=b"{}", headers={**key, "Content-Type": "text/plain"}).status_code == 415


def test_the_routes_are_on_the_head_node(address: str) -> None:
    """As the loss of any other node would cost the requests that are open there."""
    import ray

    actors = [one for one in ray._private.state.actors().values() if one["State"] == "ALIVE"]
    routes = [one["Address"]["NodeID"] for one in actors if "IngressReplica" in one["ActorClassName"]]
    heads = [node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"]]
    assert routes == heads


def test_one_machine_tells_where_its_metrics_are(tmp_path: Path) -> None:
    """As no other program finds a port that Ray chose."""
    import httpx

    command = [sys.executable, "-m", "extension.serve", "--port", str(_free_port())]
    for port in (0, _free_port()):
        log = tmp_path / f"{port}.txt"
        with log.open("w") as lines:
            served = subprocess.Popen([*command, "--metrics-port", str(port)], cwd=ROOT, stderr=lines)
        try:
            end = time.monotonic() + 300
            while not (told := re.search(r"metrics on (http://127.0.0.1:(\d+)/metrics)", log.read_text("utf-8"))):
                assert served.poll() is None
                assert time.monotonic() < end
                time.sleep(0.2)
            assert port in (0, int(told[2]))
            assert "ray_" in httpx.get(told[1]).text
        finally:
            served.send_signal(signal.SIGINT)
            served.wait(60)
