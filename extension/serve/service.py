"""The Ray Serve application: an ingress, and replicas of the model behind it.

Ray Serve sends a request to a replica that had its first LoRA before, unless that one is too busy. It starts lost
replicas again, and limits the requests that wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.util.metrics import Counter, Gauge, Histogram

from ..standalone.offline import OFFLINE
from .ingress import Ingress, IngressSettings
from .model import LATER, Model, ModelSettings, first_lora

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application

    from .model import Message
    from .queue import BatchReport

NAME = "remora"
"""Of the application."""
MOST_WAITING = 200
"""Requests that wait for a replica at one time, at each ingress."""
_MOST_OPEN = 1000  # requests at one ingress
_AT_ONCE = 4
"""Batches that each replica is sent ahead, so that it has what to choose from."""
_KEPT = 512
"""LoRA by which a replica is known."""
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_COUNTS = (1, 2, 4, 8, 16, 32)
_HEAD = {"node:__internal_head__": 0.001}
"""Ray's resource of the head node; what needs a little of it runs there."""
_DRAIN = 60.0
"""Seconds that what ends has for its open requests."""
_FAILURES = 3
"""Batches that may fail one after the other."""
_LOST = (RayActorError, ReplicaUnavailableError)


class _Metrics:
    """What Prometheus reads of a replica."""

    def __init__(self) -> None:
        self.answers = Counter("remora_requests", "Requests that ended, by their status.", tag_keys=("status",))
        self.waiting = Gauge("remora_queue", "Requests that wait in a replica.")
        self.shared = Histogram("remora_batch_requests", "Requests of a batch.", boundaries=_COUNTS)
        self.pictures = Histogram("remora_batch_pictures", "Pictures of a batch.", boundaries=_COUNTS)
        self.loras = Histogram("remora_batch_loras", "Different LoRA of a batch.", boundaries=_COUNTS)
        self.seconds = Histogram("remora_seconds", "Seconds by phase.", boundaries=_SECONDS, tag_keys=("phase",))
        self.cache = Counter("remora_lora_cache", "First LoRA of requests, by hit or miss.", tag_keys=("result",))
        # Ray takes a histogram's sum from the middles of its buckets; these are exact, for means
        self.spent = Counter("remora_spent_seconds", "Sum of the seconds by phase.", tag_keys=("phase",))
        self.done = Counter("remora_done", "Batches, with their requests, pictures and LoRA.", tag_keys=("kind",))

    def batch(self, report: BatchReport) -> None:
        """Count a batch."""
        self.shared.observe(report.requests)
        self.pictures.observe(report.pictures)
        self.loras.observe(report.loras)
        self.took("batch", report.seconds)
        for seconds in report.waited:
            self.took("queue", seconds)
        done = {"batch": 1, "request": len(report.waited), "picture": report.pictures, "lora": report.loras}
        for kind, count in done.items():
            if count:  # Ray refuses to add nothing
                self.done.inc(count, {"kind": kind})

    def took(self, phase: str, seconds: float) -> None:
        """Count the seconds of a phase."""
        self.seconds.observe(seconds, {"phase": phase})
        if seconds > 0:
            self.spent.inc(seconds, {"phase": phase})


class ModelReplica:
    """A replica of the model."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._metrics = _Metrics()
        self._model = Model(ModelSettings.of(settings), self._metrics.batch)

    async def generate(
        self, payload: dict[str, Any], from_images: bool, user: str, seconds: float
    ) -> AsyncGenerator[Message, None]:
        """Make the pictures of a request, see `Model.generate`."""
        name, began = serve.get_multiplexed_model_id(), time.monotonic()
        reading = asyncio.ensure_future(self._lora(name)) if name else None  # while the batch before runs
        status = 499  # as the client left, unless it is told something
        made = self._model.generate(payload, from_images=from_images, user=user, seconds=seconds)
        try:
            async for message in made:
                self._metrics.waiting.set(self._model.runner.waiting)
                kind, content = message
                if kind in ("answer", "refused"):
                    status = 200 if kind == "answer" else content[0]
                yield message
        finally:
            await made.aclose()
            if reading is not None:
                await reading
            self._metrics.answers.inc(tags={"status": str(status)})
            self._metrics.took("request", time.monotonic() - began)

    async def _lora(self, name: str) -> None:
        began = time.monotonic()
        read = await self._read(name)
        fresh = read[1] >= began
        self._metrics.cache.inc(tags={"result": "miss" if fresh else "hit"})
        if fresh:
            self._metrics.took("read", time.monotonic() - began)

    @serve.multiplexed(max_num_models_per_replica=_KEPT)  # type: ignore[untyped-decorator]
    async def _read(self, name: str) -> tuple[int, float]:
        return await asyncio.to_thread(self._model.read_ahead, name), time.monotonic()

    async def listing(self, name: str) -> Any:
        """Return a list, see `Model.listing`."""
        return await self._model.listing(name)

    async def refresh(self) -> None:
        """Scan the LoRA folders again."""
        await asyncio.to_thread(self._model.refresh)

    def check_health(self) -> None:
        """Raise where no picture is made any more, as after a fault of the GPU: Ray then starts the replica again."""
        if self._model.runner.failures >= _FAILURES:
            raise RuntimeError(f"the last {self._model.runner.failures} batches failed")

    def __del__(self) -> None:
        if hasattr(self, "_model"):  # it was loaded
            self._model.close()


class RayModels:
    """The replicas, as `ingress.Models`."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def generate(
        self, payload: dict[str, Any], *, from_images: bool, user: str, seconds: float
    ) -> AsyncGenerator[Message, None]:
        """Make the pictures of a request; once more if the replica is lost."""
        handle = self._handle.options(stream=True, multiplexed_model_id=first_lora(payload))
        deadline = time.monotonic() + seconds
        for is_last in (False, True):
            left = max(deadline - time.monotonic(), 0.0)
            stream = handle.generate.remote(payload, from_images, user, left)
            try:
                async for message in stream:
                    yield message
            except BackPressureError:
                yield "refused", (503, "too many requests are waiting already; try again later", {"Retry-After": LATER})
                return
            except _LOST:
                if is_last:
                    detail = "the process that made the pictures was lost, twice; try again later"
                    yield "refused", (503, detail, {"Retry-After": LATER})
                    return
                yield "retried", None
            except (asyncio.CancelledError, GeneratorExit):  # the client left
                stream.cancel()
                raise
            else:
                return

    async def listing(self, name: str) -> Any:
        """Return a list of one of the replicas, which all have the same."""
        return await self._handle.listing.remote(name)

    async def refresh(self) -> None:
        """Scan the LoRA folders again, in all replicas."""
        await self._handle.broadcast("refresh").results_async()


@serve.ingress()
class IngressReplica:
    """The routes."""

    def __init__(self, handle: DeploymentHandle, settings: Mapping[str, Any]) -> None:
        logins = tuple(settings.get("logins", ()))
        self._ingress = Ingress(RayModels(handle), IngressSettings(**{**settings, "logins": logins}))

    def __serve_build_asgi_app__(self) -> FastAPI:  # the name that Ray Serve asks for
        return self._ingress.app()


def build(arguments: Mapping[str, Any]) -> Application:
    """Return the application, for `serve.run` and `serve deploy`.

    Args:
        arguments: `model`, the fields of `ModelSettings`; `ingress`, the fields of `IngressSettings`; `replicas`, how
            many there are, or `autoscaling`, Ray Serve's `autoscaling_config`; `resources` that each replica takes, as
            Ray's `num_cpus` and `num_gpus`; `waiting`, how many requests may wait at each ingress.
    """
    model, ingress = dict(arguments.get("model", {})), dict(arguments.get("ingress", {}))
    settings = ModelSettings.of(model)
    actor = {**arguments.get("resources", {"num_cpus": 1}), "runtime_env": {"env_vars": dict(OFFLINE)}}
    options: dict[str, Any] = {
        "ray_actor_options": actor,
        "max_ongoing_requests": _AT_ONCE * settings.most_pictures,
        "max_queued_requests": int(arguments.get("waiting", MOST_WAITING)),
        "health_check_period_s": 5,
        "graceful_shutdown_timeout_s": _DRAIN,
    }
    if autoscaling := arguments.get("autoscaling"):
        options["autoscaling_config"] = dict(autoscaling)
    else:
        options["num_replicas"] = int(arguments.get("replicas", 1))
    replicas = serve.deployment(ModelReplica).options(**options).bind(model)
    # on the head node, without which there is no cluster: the loss of another node must not cost what is open
    routes = serve.deployment(IngressReplica).options(
        max_ongoing_requests=_MOST_OPEN,
        ray_actor_options={"num_cpus": 0, "resources": dict(_HEAD)},
        graceful_shutdown_timeout_s=_DRAIN,
    )
    return routes.bind(replicas, ingress)
