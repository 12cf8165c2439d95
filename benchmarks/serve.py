"""The application that serves many users, under load: a Ray of two nodes on this machine, the demo's model, Locust.

`serve.py rate` measures pictures a second and latency against the number of different LoRA in the load, for mixed
batches, for batches of one LoRA each ("grouped"), and for one picture at a time with PEFT's `set_adapters` or with
diffusers' `hotswap`. These two load plain LoRA only: with `--sources night` all ways have the same files.

`serve.py stay` keeps up a load while a replica and a node are killed, the queue is filled, and the service is started
again; 5 % of the requests name broken files. Each picture is compared with that of its request alone.

`serve.py fit FILE ...` fits a model of the rate to what `rate --json` wrote, and prints what it predicts.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import platform
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
from _common import Record, table
from _serve_files import SIX, break_files, name_of, write_files
from _serve_fit import Costs, chances, fit, prediction

WAYS = ("mixed", "grouped", "set_adapters", "hotswap")
_FLUSH = 12.0  # seconds after which Ray has exported its metrics
_SHAPES = ("two red circles on a blue ground", "a green heart, white ground", "three purple squares, yellow ground")
_GOAL, _GROUPED_GOAL, _LATENCY_GOAL = 0.9, 2.0, 1 / 3
"""The rate of 1,000 LoRA by that of one; by that of grouping; the 95 % latency by that of grouping."""


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="command", required=True)
    rate, stay = commands.add_parser("rate"), commands.add_parser("stay")
    for one in (rate, stay):
        one.add_argument("--users", type=int, default=16, help="who ask for one picture after the other")
        one.add_argument("--replicas", type=int, default=2)
        one.add_argument("--steps", type=int, default=4, help="of a picture")
        one.add_argument("--sources", nargs="+", choices=SIX, default=SIX, help="LoRA that the files are made from")
        one.add_argument("--json", type=Path, help="write the figures there, too")
    rate.add_argument("--seconds", type=float, default=60, help="of load, for each row")
    rate.add_argument("--distinct", type=int, nargs="+", default=[1, 10, 100, 1000])
    rate.add_argument("--ways", nargs="+", choices=WAYS, default=["mixed", "grouped"])
    rate.add_argument("--zipf", type=float, default=0.0, help="exponent of popularity; 0 is a uniform load")
    stay.add_argument("--minutes", type=float, default=30)
    stay.add_argument("--files", type=int, default=200)
    commands.add_parser("fit").add_argument("files", type=Path, nargs="+")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = command_line().parse_args(arguments)
    if options.command == "fit":
        return _fit(options.files)
    with TemporaryDirectory() as folder:
        if options.command == "rate":
            _rates(options, Path(folder))
        else:
            _write(options, [_stay(options, Path(folder))])
    return 0


def _write(options: argparse.Namespace, rows: Sequence[Record]) -> None:
    """Write the figures so far, so that a run that is stopped has left its rows."""
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key != "json"}
        options.json.write_text(json.dumps({"benchmark": "serve", "settings": settings, "rows": rows}, indent=1))


def _arguments(options: argparse.Namespace, folder: Path, most: int = 8, waiting: int = 200) -> dict[str, Any]:
    model = {"lora_dirs": [str(folder)], "device": "cpu", "dtype": "float32", "most_pictures": most}
    return {"model": model, "replicas": options.replicas, "waiting": waiting}


def _fields(options: argparse.Namespace, number: int, prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "seed": number, "steps": options.steps, "width": 96, "height": 96}


def _written(path: Path, address: str, wishes: Sequence[Mapping[str, Any]], references: Path | None = None) -> Path:
    """Write the file that `_serve_load.Load` reads."""
    told = {"address": address, "wishes": wishes, "out": str(path.with_suffix(".lines"))}
    path.write_text(json.dumps({**told, "references": str(references) if references else None}))
    return path


def _lines(config: Path) -> list[Record]:
    return [json.loads(line) for line in config.with_suffix(".lines").read_text().splitlines()]


# The rate


def _rates(options: argparse.Namespace, folder: Path) -> None:
    from _serve_cluster import serving

    loras = folder / "loras"
    loras.mkdir()
    write_files(loras, max(options.distinct), options.sources)
    rows: list[Record] = []
    for way in options.ways:
        alone = way in ("set_adapters", "hotswap")
        with serving(_arguments(options, loras, 1 if alone else 8), way) as service:
            routes = _routes(service.address, options.users)
            for distinct in options.distinct:
                row = _rate(options, service, folder / f"{way}{distinct}.json", distinct)
                rows.append({"way": way, **row, "routes_s": routes})
                print(_phases(rows[-1]), flush=True)
                _write(options, rows)
    _print_rates(rows)


def _routes(address: str, users: int, seconds: float = 5.0) -> float:
    """Return how many requests a second pass through the routes to a replica and back, without a picture."""
    until = time.time() + seconds

    def ask(_: int) -> int:
        count = 0
        while time.time() < until:
            with urlopen(f"{address}/sdapi/v1/samplers", timeout=60) as answer:
                answer.read()
            count += 1
        return count

    with ThreadPoolExecutor(users) as pool:
        return sum(pool.map(ask, range(users))) / seconds


def _rate(options: argparse.Namespace, service: Any, path: Path, distinct: int) -> Record:
    """Measure one row."""
    from _serve_cluster import start_load

    wishes = [
        {
            "fields": _fields(options, number, f"{_SHAPES[number % 3]} <lora:{name_of(number)}:0.8>"),
            "chance": chance,
            "status": 200,
        }
        for number, chance in enumerate(chances(distinct, options.zipf))
    ]
    config = _written(path, service.address, wishes)
    before, began = service.metrics(), time.time()
    if start_load(config, options.users, options.seconds).wait():
        print("some requests failed", file=sys.stderr)
    seconds, lines = time.time() - began, _lines(config)
    time.sleep(_FLUSH)
    answered = sorted(line["seconds"] for line in lines if line["status"] == 200)
    spent = max(line["began"] + line["seconds"] for line in lines) - min(line["began"] for line in lines)
    return {
        "distinct": distinct,
        "zipf": options.zipf,
        "replicas": options.replicas,
        "requests": len(lines),
        "lost": sum(line["lost"] for line in lines),
        "seconds": seconds,
        "pictures_s": len(answered) / spent,
        "p50_s": median(answered),
        "p95_s": answered[int(0.95 * len(answered))],
        "mean_s": sum(answered) / len(answered),
        **_measured(service.metrics() - before),
    }


def _measured(added: Counter[str]) -> Record:
    """Return what the metrics say of a row: means of batches, the share of hits, and seconds by phase."""
    batches = max(added["done_total batch"], 1)
    looked = max(added["lora_cache_total hit"] + added["lora_cache_total miss"], 1)
    requests = max(added["done_total request"], 1)
    counts = {"batch": batches, "read": max(added["lora_cache_total miss"], 1)}
    return {
        "batches": batches,
        "batch_pictures": added["done_total picture"] / batches,
        "batch_loras": added["done_total lora"] / batches,
        "hits": added["lora_cache_total hit"] / looked,
        **{
            f"{phase}_s": added[f"spent_seconds_total {phase}"] / counts.get(phase, requests)
            for phase in ("queue", "batch", "read", "request")
        },
    }


def _phases(row: Record) -> str:
    """Return one sentence on where the seconds of a request went."""
    rest = row["request_s"] - row["queue_s"] - row["batch_s"]
    outside = row["mean_s"] - row["request_s"]
    return (
        f"{row['way']}, {row['distinct']} LoRA: a request took {row['mean_s']:.3f} s, {row['queue_s']:.3f} in the "
        f"queue, {row['batch_s']:.3f} in its batch, {rest:.3f} else in the replica, {outside:.3f} outside of it; "
        f"reading a file ahead took {row['read_s']:.3f}"
    )


def _print_rates(rows: Sequence[Record]) -> None:
    headers = ("way", "LoRA", "pictures/s", "p50", "p95", "in a batch", "LoRA in a batch", "hits", "lost")
    print(table(headers, [_cells(row) for row in rows]))
    rates = {(row["way"], row["distinct"]): row for row in rows}
    few, many = rates.get(("mixed", 1)), rates.get(("mixed", 1000))
    if few and many:
        ratio = many["pictures_s"] / few["pictures_s"]
        print(f"1,000 LoRA have {ratio:.2f} of the rate of one; the goal is {_GOAL}")
    for row in rows:
        if row["way"] == "grouped" and (own := rates.get(("mixed", row["distinct"]))):
            rate, late = own["pictures_s"] / row["pictures_s"], own["p95_s"] / row["p95_s"]
            goals = f"the goals at many LoRA are {_GROUPED_GOAL:.0f} and {_LATENCY_GOAL:.2f}"
            print(f"{row['distinct']} LoRA: mixed has {rate:.2f} of grouping's rate, {late:.2f} of its p95; {goals}")


def _cells(row: Record) -> list[str]:
    return [
        *(row["way"], str(row["distinct"]), f"{row['pictures_s']:.2f}", f"{row['p50_s']:.2f} s"),
        *(f"{row['p95_s']:.2f} s", f"{row['batch_pictures']:.1f}", f"{row['batch_loras']:.1f}"),
        *(f"{row['hits']:.2f}", str(row["lost"])),
    ]


# Staying alive


def _stay(options: argparse.Namespace, folder: Path) -> Record:
    from _serve_cluster import serving, start_load

    loras = folder / "loras"
    loras.mkdir()
    write_files(loras, options.files, options.sources)
    broken = range(0, options.files, 20)
    break_files(loras, broken)
    wishes = _stay_wishes(options, set(broken))
    references = folder / "references.npz"
    _alone(_arguments(options, loras)["model"], wishes, references)
    with serving(_arguments(options, loras, waiting=24)) as service:
        config, seconds = _written(folder / "stay.json", service.address, wishes, references), options.minutes * 60
        load = start_load(config, options.users, seconds)
        memory = _Memory(service.memory)
        events: dict[str, Callable[[], object]] = {
            "a replica is killed": service.kill_replica,
            "a node is killed": service.kill_node,
            "the queue is filled": lambda: _filled(service.address, wishes[1]["fields"]),
            "the service is started again": service.restart,
        }
        told = _happening(events, seconds, time.time())
        load.wait()
        memory.ended.set()
    return _print_stay(_lines(config), told, memory)


def _stay_wishes(options: argparse.Namespace, broken: set[int]) -> list[Record]:
    """Return a wish for each file: one LoRA, or two; a broken file is refused."""
    good = [number for number in range(options.files) if number not in broken]
    draw = random.Random(0)
    wishes = []
    for number in range(options.files):
        tags = f"<lora:{name_of(number)}:{draw.uniform(0.3, 1):.2f}>"
        if number % 3 == 0:
            tags += f" <lora:{name_of(draw.choice(good))}:{draw.uniform(0.3, 1):.2f}>"
        fields = _fields(options, number, f"{_SHAPES[number % 3]} {tags}")
        wishes.append({"fields": fields, "chance": 1.0, "status": 422 if number in broken else 200})
    return wishes


def _alone(settings: Mapping[str, Any], wishes: Sequence[Record], path: Path) -> None:
    """Make the picture of each wish alone, and write them all to a file."""
    import torch
    from PIL import Image

    from extension.serve.model import Model, ModelSettings

    torch.set_num_threads(1)  # as a replica has
    model = Model(ModelSettings.of({**settings, "gather": 0.0}))

    async def answer(fields: dict[str, Any]) -> Any:
        made = model.generate(fields, from_images=False, user="", seconds=600)
        return [message async for message in made][-1][1]

    pictures = {}
    for number, wish in enumerate(wishes):
        if wish["status"] == 200:
            png = base64.b64decode(asyncio.run(answer(wish["fields"]))["images"][0])
            pictures[str(number)] = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    model.close()
    np.savez(path, **pictures)  # type: ignore[arg-type]  # names are numbers


class _Memory:
    """Samples the memory of each replica; the first sample is taken once it has worked for a while."""

    _WARM, _EVERY = 30.0, 5.0  # seconds

    def __init__(self, read: Callable[[], Mapping[int, int]]) -> None:
        self.ended = threading.Event()
        self.samples: dict[int, list[tuple[float, int]]] = {}
        threading.Thread(target=self._run, args=(read,), daemon=True).start()

    def _run(self, read: Callable[[], Mapping[int, int]]) -> None:
        while not self.ended.wait(self._EVERY):
            for process, size in read().items():
                self.samples.setdefault(process, []).append((time.time(), size))

    def growth(self) -> list[Record]:
        """Return the bytes of each replica once it was warm and at its end, and the seconds between."""
        found = []
        for values in self.samples.values():
            warm = [(when, size) for when, size in values if when - values[0][0] >= self._WARM]
            if len(warm) > 1:
                found.append({"first": warm[0][1], "last": warm[-1][1], "seconds": warm[-1][0] - warm[0][0]})
        return found


def _happening(events: Mapping[str, Callable[[], object]], seconds: float, began: float) -> list[Record]:
    """Let the events happen at equal distances."""
    told = []
    for position, (name, event) in enumerate(events.items(), 1):
        time.sleep(max(began + seconds * position / (len(events) + 1) - time.time(), 0))
        start = time.time()
        outcome = event()
        told.append({"event": name, "at": start - began, "took": time.time() - start, "outcome": outcome})
        print(f"{told[-1]['at']:.0f} s: {name}, which took {told[-1]['took']:.1f} s; {outcome or ''}", flush=True)
    return told


def _filled(address: str, fields: Mapping[str, Any], count: int = 130) -> dict[str, int]:
    """Send many requests at one time; return how many had each status, and whether it had Retry-After."""
    from extension.client import Client, ClientError

    found: Counter[str] = Counter()

    def ask() -> None:
        try:
            Client(address, tries=1).txt2img(**fields)
            found["200"] += 1
        except ClientError as error:
            found[f"{error.status}{' with Retry-After' if error.retry_after else ''}"] += 1

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(found)


def _print_stay(lines: Sequence[Record], told: list[Record], memory: _Memory) -> Record:
    lost, wrong = [line for line in lines if line["lost"]], [line for line in lines if line["wrong"]]
    print(f"{len(lines)} requests, {len(lost)} lost, {len(wrong)} wrong pictures")
    print(f"{sum(line['retried'] for line in lines)} were told that they began again")
    print(f"{sum(line['tries'] > 1 for line in lines)} could not reach the service at first")
    print(f"the largest difference from the request alone is {max(line['differs'] for line in lines)} of 255")
    for said, count in Counter(f"{line['status']}: {line['said'][:120]}" for line in lost).most_common(10):
        print(f"lost, {count} times: {said}")
    for line in lost[:10]:
        print(f"lost: began at {line['began'] - lines[0]['began']:.0f} s, took {line['seconds']:.1f} s")
    growth = memory.growth()
    for one in growth:
        minutes, sizes = one["seconds"] / 60, f"{one['first'] >> 20} to {one['last'] >> 20} MB"
        print(f"a replica's memory went from {sizes} in {minutes:.1f} minutes")
    numbers = {"requests": len(lines), "lost": len(lost), "wrong": len(wrong)}
    return {**numbers, "events": told, "memory": growth, "largest": max(line["differs"] for line in lines)}


# The model


def _fit(files: Sequence[Path]) -> int:
    rows = [row for file in files for row in json.loads(file.read_text("utf-8"))["rows"]]
    costs: Costs = fit([row for row in rows if row["way"] == "mixed"])
    routes = median(row["routes_s"] for row in rows)
    print(f"fitted on {platform.machine()}, {len(rows)} rows: {costs}; the routes pass {routes:.0f} requests a second")
    print(table(("GPUs", "Zipf", "LoRA kept by each", "hits", "pictures/s", "bound by"), prediction(costs, routes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
