"""What the clients of a soak ask for, and what is a right answer to it."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
from PIL import Image

from .faults import STABLE, Churn
from .ledger import Ledger, Pending, Span
from .served import Served

PATIENCE = 120.0  # seconds for an answer: those of a locked database and of pictures behind others come late
OK, NOTHING, MISSING, CONFLICT, STALE, REFUSED = 200, 204, 404, 409, 412, 422
RESTARTS = frozenset({"killed", "ended and started again"})
"""Faults that explain no error that is told."""
GONE = RESTARTS | {"process stopped"}
"""Faults in which connections end; one that is stopped closes those that were idle as soon as it goes on."""
_OURS = re.compile(r"because of an internal error|Traceback| object at 0x|Errno|<class ")
"""What no sentence has that was meant for people."""
_WORDS = ("a red circle", "two blue stars on a white ground", "a green heart on the left", "three purple squares")
_TAGS = (
    "{name}:{strength}",
    "{name}:{strength}:{other}",
    "{name}:{strength}:start=1",
    "{name}:{strength}:stop=1",
    "{name}:{strength}:mask=left",
    "{name}:{strength}:mask=0,0,0.5,1:feather=0.2",
    "{name}:{strength}:lbw=1,0,0,0,1,1,0,1,1,0.5,0,0,1,1,1,1,1",
    "{name}:{strength}@0,{other}@1",
)
_BAD_PROMPTS = ("<lora:nothing-of-this-name:1>", "<lora:stripes:much>", "<lora:stripes:1:mask=nowhere>", "<lora::1>")
_STACKS = (
    {"always_on": False, "entries": [{"name": "night", "unet": 0.5}]},
    {"always_on": False, "entries": []},
    {"always_on": True, "entries": [{"name": "night", "unet": 0.5, "text_encoder": 0.5}]},
    {"always_on": True, "entries": [{"name": "stars", "on": False}, {"name": "neon", "unet": 0.25, "more": "stop=1"}]},
)
PRESET, NOTE, REGION, BLOCKS, STACK, PICTURE = "presets", "notes", "regions", "blocks", "stack", "pictures"
_FIELDS = ("words", "negative", "notes", "description", "tags", "rating", "favourite", "strength")


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    content: bytes
    span: Span
    etag: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.content)


class Client:
    """One of those who use the servers at once.

    Args:
        name: of its own, which what it keeps is called after.
        servers: which it talks to; more often to the first.
        churn: the files that come and go.
        ledger: judges.
        seed: of what it does.
    """

    def __init__(self, name: str, servers: list[Served], churn: Churn, ledger: Ledger, seed: str) -> None:
        self.name = name
        self._servers = servers
        self._churn = churn
        self._ledger = ledger
        self._random = Random(seed)
        # a web UI ends a connection that was idle for five seconds, which is the default here, too: a request that is
        # sent at that moment has no answer
        self._http = httpx.Client(timeout=PATIENCE, limits=httpx.Limits(keepalive_expiry=2.0))
        self._fresh = 0
        self._mirrors: dict[str, tuple[int, int, dict[str, Any]]] = {}
        """Server -> its start, and the revision and the files of its list as told by changes."""
        self.server = servers[0]
        self.pool = Pool(Random(seed.partition("/")[0]))

    def close(self) -> None:
        self._http.close()

    def step(self) -> None:
        """Ask for one thing, at random."""
        up = [server for server in self._servers if server.up.is_set()]
        if not up:
            time.sleep(0.2)
            return
        self.server = up[0] if self._random.random() < 0.6 else up[-1]
        actions: list[Callable[[], object]] = [action for action, weight in self._actions for _ in range(weight)]
        self._random.choice(actions)()

    @property
    def _actions(self) -> tuple[tuple[Callable[[], object], int], ...]:
        return (
            (self.make_picture, 14),
            (self.make_churned_picture, 3),
            (self.make_bad_picture, 1),
            (self.interrupt, 1),
            (self.compare, 1),
            (self.list_presets, 4),
            (self.put_preset, 7),
            (self.import_preset, 1),
            (self.put_stale_preset, 2),
            (self.picture_preset, 1),
            (self.change_notes, 6),
            (self.look_at_notes, 3),
            (self.put_region, 2),
            (self.list_regions, 1),
            (self.put_blocks, 2),
            (self.put_stack, 3),
            (self.look_at_stack, 2),
            (self.list_files, 4),
            (self.search, 4),
            (self.inspect, 2),
            (self.thumbnail, 3),
            (self.set_picture, 1),
            (self.look_around, 3),
        )

    # asking

    def ask(self, kind: str, method: str, path: str, allowed: tuple[int, ...] = (OK,), **more: Any) -> Answer | None:
        """Ask for something; None where nothing came that can be used, which was judged."""
        ledger, server, began = self._ledger, self.server, time.monotonic()
        try:
            response = self._http.request(method, f"{server.url}{path}", **more)
        except httpx.HTTPError as error:
            span = began, time.monotonic()
            with ledger.lock:
                ledger.requests[kind] += 1
            if isinstance(error, httpx.TimeoutException) or not GONE & set(ledger.explained(server.name, span)):
                ledger.went_wrong(kind, f"no answer from {server.name}: {error!r}", path=path, seconds=span[1] - began)
            return None
        span = began, time.monotonic()
        with ledger.lock:
            ledger.requests[kind] += 1
            ledger.statuses[response.status_code] += 1
        answer = Answer(response.status_code, response.content, span, response.headers.get("etag", ""))
        if problem := self._problem(answer, allowed):
            ledger.went_wrong(
                kind,
                f"{method} {path}: {answer.status} {problem}: {answer.content[:1000].decode('utf-8', 'replace')}",
                server=server.name,
                faults=ledger.explained(server.name, span),
                sent=more.get("json"),
            )
            return None
        return answer

    def _problem(self, answer: Answer, allowed: tuple[int, ...]) -> str:
        """Return what is wrong with an answer; nothing where it is right, or a sentence that a fault explains."""
        if answer.status < 400:
            return "" if answer.status in allowed else f"is none of {allowed}"
        try:
            detail = answer.json["detail"]
        except (ValueError, KeyError, TypeError):
            return "is no sentence"
        if not isinstance(detail, str) or not detail.strip() or "\n" in detail or len(detail) > 2100:
            return "is no sentence"
        if _OURS.search(detail):
            return "is not for people"
        if answer.status < 500:
            return "" if answer.status in allowed else f"is none of {allowed}"
        faults = set(self._ledger.explained(self.server.name, answer.span)) - RESTARTS
        if not faults:
            return "and no fault explains it"
        with self._ledger.lock:
            self._ledger.refusals[f"{answer.status} {detail.partition(' /')[0]:.60}"] += 1
        return ""

    def _check(self, what: str, found: Mapping[Hashable, Any], span: Span, *, whole: bool = True) -> None:
        for wrong in self._ledger.read(what, found, span, whole=whole):
            faults = self._ledger.explained(self.server.name, span)
            self._ledger.went_wrong("kept", f"on server {self.server.name}: {wrong}", faults=faults)

    def _write(self, kind: str, method: str, path: str, pending: Pending, *allowed: int, **more: Any) -> Answer | None:
        """Ask for a change, and note what became of it."""
        answer = self.ask(kind, method, path, (OK, *allowed), **more)
        if answer is None:
            # an answer that is wrong says nothing of what was kept
            pending.lost()
        elif answer.status == OK:
            pending.kept()
        else:
            pending.refused()
        return answer if answer is not None and answer.status == OK else None

    def _unique(self) -> str:
        self._fresh += 1
        return f"{self.name}-{self._fresh}"

    # presets

    def list_presets(self) -> tuple[str, Mapping[Hashable, Any], Span] | None:
        answer = self.ask("presets", "GET", "/remora/v1/presets")
        if answer is None:
            return None
        found = self._presets(answer)
        return answer.etag, found, answer.span

    def _presets(self, answer: Answer) -> Mapping[Hashable, Any]:
        data = answer.json
        if data["problem"] and not self._ledger.explained(self.server.name, answer.span):
            self._ledger.went_wrong("presets", f"no fault explains {data['problem']}")
            return {}
        found = {one["name"]: one["text"] for one in data["presets"]}
        self._check(PRESET, found, answer.span)
        return found

    def _preset_text(self) -> str:
        lines = self._random.sample(STABLE, self._random.randint(1, 3))
        return "\n".join(f"<lora:{name}:{self._random.randint(1, 20) / 10}> {self._unique()}" for name in lines)

    def put_preset(self) -> None:
        name, former = f"{self.name} {self._random.randint(1, 8)}", f"{self.name} {self._random.randint(1, 8)}"
        if self._random.random() < 0.3:  # which others change as well
            name = f"shared {self._random.randint(1, 4)}"
        path, begun = "/remora/v1/preset", {"name": name}
        match self._random.randint(1, 6):
            case 1:
                pending = self._ledger.writing(PRESET, {name: None})
                self._write("presets", "DELETE", path, pending, MISSING, params=begun)
            case 2 if former != name and name.startswith(self.name):
                text = self._preset_text()
                pending = self._ledger.writing(PRESET, {name: text, former: None})
                body = {"text": text, "former": former}
                self._write("presets", "PUT", path, pending, MISSING, params=begun, json=body)
            case _:
                text = self._preset_text()
                pending = self._ledger.writing(PRESET, {name: text})
                answer = self._write("presets", "PUT", path, pending, params=begun, json={"text": text})
                if answer is not None:
                    self._presets(answer)

    def import_preset(self) -> None:
        name, text = f"imported {self._unique()}", self._preset_text()
        pending = self._ledger.writing(PRESET, {name: text})
        body = {"text": f"# Remora preset 1: {name}\n{text}\n"}
        if self._write("presets", "POST", "/remora/v1/presets", pending, json=body) is not None:
            pending = self._ledger.writing(PRESET, {name: None})
            self._write("presets", "DELETE", "/remora/v1/preset", pending, params={"name": name})

    def put_stale_preset(self) -> None:
        """Change a preset where the list still is as it was seen, which it may not be."""
        seen = self.list_presets()
        if seen is None:
            return
        etag, snapshot, looked = seen
        if self._random.random() < 0.5:
            time.sleep(self._random.random())
        name, text = f"{self.name} {self._random.randint(1, 8)}", self._preset_text()
        began = time.monotonic()
        self._if_match(
            PRESET, name, text, snapshot, (looked[0], began), "PUT", "/remora/v1/preset", etag,
            params={"name": name}, json={"text": text},
        )  # fmt: skip

    def _if_match(
        self,
        what: str,
        key: Hashable,
        value: Any,
        snapshot: Mapping[Hashable, Any],
        looked: Span,
        method: str,
        path: str,
        etag: str,
        **more: Any,
    ) -> None:
        ledger, began = self._ledger, time.monotonic()
        pending = ledger.writing(what, {key: value})
        answer = self.ask(what, method, path, (OK, STALE), headers={"If-Match": etag}, **more)
        span = began, time.monotonic()
        if answer is None:
            pending.lost()
            return
        if answer.status == STALE:
            pending.refused()
            with ledger.lock:
                ledger.conflicts += 1
            if not ledger.changed(what, (looked[0], span[1])) and not ledger.explained(
                self.server.name, (looked[0], span[1])
            ):
                ledger.went_wrong(what, f"412, though nobody changed anything since it was looked at ({key})")
            return
        if answer.status != OK:
            pending.refused()
            return
        others = {other: seen for other, seen in snapshot.items() if other != key}
        for wrong in ledger.read(what, others, span, whole=False):
            ledger.went_wrong(what, f"If-Match let a change of {key!r} through, though others had changed: {wrong}")
        pending.kept()

    def picture_preset(self) -> None:
        """Give a preset a thumbnail, which changes none of what is looked at here."""
        found = self.list_presets()
        if found is not None and found[1]:
            name = self._random.choice(sorted(map(str, found[1])))
            pending = self._ledger.writing(PRESET, {})
            self._write(
                "thumbnails", "PUT", "/remora/v1/preset/thumbnail", pending, MISSING,
                params={"name": name}, content=self._png(), headers={"Content-Type": "image/png"},
            )  # fmt: skip
            self.ask("thumbnails", "GET", "/remora/v1/preset/thumbnail", (OK, MISSING), params={"name": name})

    # notes

    def change_notes(self) -> None:
        name, field = self._random.choice(STABLE), self._random.choice(_FIELDS)
        value: Any
        match field:
            case "tags":
                value = [f"tag {self._unique()}" for _ in range(self._random.randint(1, 3))]
            case "rating":
                value = self._random.randint(0, 5)
            case "favourite":
                value = self._random.random() < 0.5
            case "strength":
                value = self._random.choice([0.5, 0.8, 1.2, 0.1 * self._random.randint(1, 9)])
            case _:
                value = f"{field} of {self._unique()}"
        pending = self._ledger.writing(NOTE, {(name, field): value})
        answer = self._write("notes", "PATCH", "/remora/v1/lora", pending, params={"name": name}, json={field: value})
        if answer is not None:
            self._notes(name, answer)

    def look_at_notes(self) -> None:
        name = self._random.choice(STABLE)
        answer = self.ask("notes", "GET", "/remora/v1/lora", params={"name": name})
        if answer is not None:
            self._notes(name, answer)

    def _notes(self, name: str, answer: Answer) -> None:
        data = answer.json
        if data["problems"]:
            if not self._ledger.explained(self.server.name, answer.span):
                self._ledger.went_wrong("notes", f"no fault explains {data['problems']}")
            return
        self._check(NOTE, {(name, field): data[field] for field in _FIELDS}, answer.span, whole=False)

    # regions and presets of blocks

    def put_region(self) -> None:
        name = f"{self.name}r{self._random.randint(1, 3)}"
        if self._random.random() < 0.25:
            pending = self._ledger.writing(REGION, {name: None})
            self._write("regions", "DELETE", "/remora/v1/regions", pending, REFUSED, params={"name": name})
            return
        cells = bytes([255, *(self._random.randrange(256) for _ in range(63))])
        stream = io.BytesIO()
        Image.frombytes("L", (8, 8), cells).save(stream, "PNG")
        body = {"name": name, "picture": base64.b64encode(stream.getvalue()).decode()}
        pending = self._ledger.writing(REGION, {name: cells})
        answer = self._write("regions", "PUT", "/remora/v1/regions", pending, json=body)
        if answer is not None:
            self._regions(answer)

    def list_regions(self) -> None:
        answer = self.ask("regions", "GET", "/remora/v1/regions")
        if answer is not None:
            self._regions(answer)

    def _regions(self, answer: Answer) -> None:
        own = {one["name"]: base64.b64decode(one["picture"]) for one in answer.json["regions"] if one["own"]}
        self._check(
            REGION,
            {name: Image.open(io.BytesIO(picture)).convert("L").tobytes() for name, picture in own.items()},
            answer.span,
        )

    def put_blocks(self) -> None:
        name = f"{self.name.upper()}B{self._random.randint(1, 3)}"
        if self._random.random() < 0.25:
            pending = self._ledger.writing(BLOCKS, {name: None})
            answer = self._write(
                "blocks", "DELETE", "/remora/v1/blocks/presets", pending, REFUSED, params={"name": name}
            )
        else:
            values = ",".join(f"{self._random.randint(0, 10) / 10:g}" for _ in range(17))
            pending = self._ledger.writing(BLOCKS, {name: values})
            body = {"name": name, "values": values}
            answer = self._write("blocks", "PUT", "/remora/v1/blocks/presets", pending, json=body)
        if answer is not None:
            self._blocks(answer)

    def list_blocks(self) -> None:
        answer = self.ask("blocks", "GET", "/remora/v1/blocks")
        if answer is not None:
            self._blocks(answer)

    def _blocks(self, answer: Answer) -> None:
        own = {one["name"]: one["values"] for one in answer.json["presets"] if one["own"]}
        self._check(BLOCKS, own, answer.span)

    # the stack

    def look_at_stack(self) -> tuple[str, Mapping[Hashable, Any], Span] | None:
        answer = self.ask("stack", "GET", "/remora/v1/stack")
        if answer is None:
            return None
        found: Mapping[Hashable, Any] = {"": _stack(answer.json)}
        self._check(STACK, found, answer.span)
        return answer.etag, found, answer.span

    def put_stack(self) -> None:
        wanted = self._random.choice(_STACKS if self._random.random() < 0.4 else _STACKS[:2])
        if self._random.random() < 0.5:
            seen = self.look_at_stack()
            if seen is not None:
                etag, found, looked = seen
                self._if_match(
                    STACK, "", _stack(wanted), found, (looked[0], time.monotonic()), "PUT", "/remora/v1/stack", etag,
                    json=wanted,
                )  # fmt: skip
            return
        pending = self._ledger.writing(STACK, {"": _stack(wanted)})
        self._write("stack", "PUT", "/remora/v1/stack", pending, json=wanted)

    # files

    def list_files(self) -> None:
        """List what changed since this client last did, and see that the files that stay are there."""
        server = self.server
        starts, revision, files = self._mirrors.get(server.name, (0, 0, {}))
        if starts != server.starts:
            revision, files = 0, {}
        answer = self.ask("files", "GET", "/remora/v1/loras", params={"since": revision})
        if answer is None:
            return
        data = answer.json
        files = dict(files) if not data["whole"] else {}
        files |= {one["id"]: one for one in data["loras"]}
        files = {one: told for one, told in files.items() if one not in data["gone"]}
        self._mirrors[server.name] = server.starts, data["revision"], files
        readable = {one["name"] for one in files.values() if one["readable"]}
        if not data["scan"]["running"] and (missing := sorted(set(STABLE) - readable)):
            faults = self._ledger.explained(server.name, answer.span)
            self._ledger.went_wrong("files", f"{missing} are not in the list of server {server.name}", faults=faults)

    def compare_lists(self) -> None:
        """See that the list as told by changes is the whole list; while nothing else happens."""
        self.list_files()
        answer = self.ask("files", "GET", "/remora/v1/loras", params={"since": 0})
        known = self._mirrors.get(self.server.name)
        if answer is None or known is None or known[1] != answer.json["revision"]:
            return
        whole = {one["id"]: one for one in answer.json["loras"]}
        if whole != known[2]:
            apart = [one for one in whole.keys() | known[2].keys() if whole.get(one) != known[2].get(one)]
            text = "; ".join(f"{known[2].get(one)!r:.300} is in truth {whole.get(one)!r:.300}" for one in apart)
            self._ledger.went_wrong("files", f"the list by changes is another than the whole one: {text}")

    def search(self) -> None:
        names = [*self._random.sample(STABLE, 2), "nothing-of-this-name", self._random.choice(self._churn.names)]
        answer = self.ask("searches", "POST", "/remora/v1/resolve", json={"names": names})
        if answer is not None:
            meant = answer.json["names"]
            wrong = [name for name in names[:2] if meant[name]["name"] != name or meant[name]["problem"]]
            if wrong or meant[names[2]]["id"] is not None:
                self._ledger.went_wrong("searches", f"{names[:3]} mean {meant!r:.600}")

    def inspect(self) -> None:
        name = self._random.choice([*STABLE, *self._churn.names])
        more = {"model": "loaded"} if self._random.random() < 0.5 else {}
        allowed = (OK,) if name in STABLE else (OK, MISSING, REFUSED)
        self.ask("inspections", "GET", "/remora/v1/inspect", allowed, params={"name": name, **more})
        if name not in STABLE:
            self.ask("inspections", "GET", "/remora/v1/lora", (OK, MISSING), params={"name": name})

    def thumbnail(self) -> None:
        name = self._random.choice([*STABLE, *self._churn.names])
        allowed = (OK,) if name in STABLE else (OK, NOTHING, MISSING)  # a broken file has no picture
        self.ask("thumbnails", "GET", "/remora/v1/thumbnail", allowed, params={"name": name})

    def set_picture(self) -> None:
        name = self._random.choice(STABLE)
        self.ask(
            "thumbnails", "PUT", "/remora/v1/picture",
            params={"name": name}, content=self._png(), headers={"Content-Type": "image/png"},
        )  # fmt: skip

    def _png(self) -> bytes:
        stream = io.BytesIO()
        colour = tuple(self._random.randrange(256) for _ in range(3))
        Image.new("RGB", (96, 96), colour).save(stream, "PNG")
        return stream.getvalue()

    def look_around(self) -> None:
        self.ask(
            "looks",
            "GET",
            self._random.choice(
                [
                    "/remora/v1/state",
                    "/sdapi/v1/progress",
                    "/sdapi/v1/samplers",
                    "/sdapi/v1/options",
                    "/remora/v1/compare",
                    "/remora/v1/blocks",
                    "/",
                ]
            ),
        )

    # pictures

    def make_picture(self) -> None:
        """Make one of a few pictures over and over again, or a new one."""
        known = self._random.random() < 0.9
        self.paint(self._random.choice(self.pool.requests) if known else self.pool.request(self._random))

    def paint(self, request: Mapping[str, Any]) -> None:
        answer = self.ask(PICTURE, "POST", "/sdapi/v1/txt2img", json=request)
        if answer is not None:
            self.server.painted += 1
            self._pictures(request, answer, compared=True)

    def _pictures(self, request: Mapping[str, Any], answer: Answer, *, compared: bool) -> None:
        data, ledger = answer.json, self._ledger
        info = json.loads(data["info"])
        cancelled = info["remora"]["cancelled"]
        if cancelled:
            with ledger.lock:
                ledger.cancelled += 1
            if not ledger.may_be_cancelled(self.server.name, answer.span):
                ledger.went_wrong(PICTURE, f"cancelled, though nobody interrupted it: {request['prompt']}")
        elif len(data["images"]) != request.get("n_iter", 1) * request.get("batch_size", 1):
            ledger.went_wrong(PICTURE, f"{len(data['images'])} pictures came of {request}")
        unsaved = [note for note in info["remora"]["notes"] if "could not be saved" in note]
        if unsaved and not ledger.explained(self.server.name, answer.span):
            ledger.went_wrong(PICTURE, f"no fault explains {unsaved[0]}")
        if request.get("save_images") and not unsaved:
            with ledger.lock:
                ledger.saved += len(data["images"])
        finished = not any("unfinished" in note for note in info["remora"]["notes"])
        for image, infotext in zip(data["images"], info["infotexts"], strict=False):
            picture = Image.open(io.BytesIO(base64.b64decode(image)))
            if not finished:
                ledger.note_unfinished(picture.tobytes())
                continue
            if not compared:
                with ledger.lock:
                    ledger.pictures += 1
                continue
            if problem := ledger.picture(infotext, picture.tobytes()):
                ledger.went_wrong(PICTURE, f"a picture {problem}", server=self.server.name, request=request)
            self._told(request, infotext, answer.span)

    def _told(self, request: Mapping[str, Any], infotext: str, span: Span) -> None:
        """Check the parameters text against what was asked for, and against the stack that was always on."""
        ledger = self._ledger
        always = re.search(r"Remora stack: (\"[^\"]*\"|[^,]*)", infotext)
        names = sorted(re.findall(r"<lora:([^:>]*)", always[1])) if always else []
        stacks = ledger.possible(STACK, "", span)
        own = set(re.findall(r"<lora:([^:>]*)", request["prompt"]))  # which count instead
        wanted = [
            sorted(name for name, on, *_ in entries if on and name not in own) if enabled else []
            for enabled, entries in stacks
        ]
        if names not in wanted:
            ledger.went_wrong(PICTURE, f"the stack that is always on was {names}, not one of {wanted}: {infotext}")
        seed = re.search(r"Seed: \d+", infotext)
        if seed is None or not infotext.startswith(request["prompt"]):
            ledger.went_wrong(PICTURE, f"the parameters are not those of {request}: {infotext}")
        elif own & set(self._churn.names):
            return  # the text has the file's hash, and there are other contents under its name by turns
        elif not always and (problem := ledger.parameters(f"{request} {seed[0]}", infotext)):
            ledger.went_wrong(PICTURE, f"parameters {problem}")

    def make_churned_picture(self) -> None:
        """Make a picture with a file that comes, goes and breaks."""
        name = self._random.choice(self._churn.names)
        before = self._churn.state(name)
        request = {
            **self._random.choice(self.pool.requests),
            "prompt": f"a red circle <lora:{name}:1>",
            "n_iter": 1,
            "batch_size": 1,
        }
        answer = self.ask("pictures of changing files", "POST", "/sdapi/v1/txt2img", (OK, REFUSED), json=request)
        if answer is None:
            return
        steady = before == self._churn.state(name) and before.steady
        with self._ledger.lock:
            self._ledger.requests["of these, of files that stayed"] += steady
        if steady and before.good != (answer.status == OK) and not self._ledger.explained("", answer.span):
            said = answer.content[:400].decode("utf-8", "replace") if answer.status != OK else "a picture"
            self._ledger.went_wrong(PICTURE, f"{name} was {before.what} all the time, and this came: {said}")
        if answer.status == OK:
            self._pictures(request, answer, compared=steady)

    def make_bad_picture(self) -> None:
        request: dict[str, Any] = {**self.pool.requests[0]}
        request |= self._random.choice(
            [{"prompt": self._random.choice(_BAD_PROMPTS)}, {"steps": 0}, {"width": 65}, {"sampler_name": "none"}]
        )
        self.ask("bad requests", "POST", "/sdapi/v1/txt2img", (REFUSED,), json=request)

    def interrupt(self) -> None:
        with self._ledger.interrupting(self.server.name):
            self.ask("interrupts", "POST", "/sdapi/v1/interrupt")

    def compare(self) -> None:
        name = self._random.choice(STABLE)
        body = {
            "mode": "strengths", "names": [name], "values": [0, 1], "prompt": f"a red circle <lora:{name}:1>",
            "steps": 1, "width": 64, "height": 64, "seed": 5, "sampler": "Euler",
        }  # fmt: skip
        if self.ask("comparisons", "POST", "/remora/v1/compare", (OK, CONFLICT), json=body) is None:
            return
        time.sleep(self._random.random())
        self.ask("comparisons", "GET", "/remora/v1/compare/picture", (OK, MISSING), params={"cell": "0"})
        if self._random.random() < 0.3:
            self.ask("comparisons", "DELETE", "/remora/v1/compare")

    # all of it

    def settle(self) -> None:
        """Give everything a value that is looked at from the beginning."""
        pending = self._ledger.writing(STACK, {"": _stack(_STACKS[1])})
        self._write("stack", "PUT", "/remora/v1/stack", pending, json=_STACKS[1])
        for name in STABLE:
            values: dict[str, Any] = dict.fromkeys(_FIELDS[:4], f"of {name}")
            values |= {"tags": [name], "rating": 1, "favourite": False, "strength": 1.5}
            pending = self._ledger.writing(NOTE, {(name, field): value for field, value in values.items()})
            self._write("notes", "PATCH", "/remora/v1/lora", pending, params={"name": name}, json=values)

    def look_at_everything(self) -> None:
        """Read all that is kept, from the server that is set."""
        self.list_presets()
        self.list_regions()
        self.list_blocks()
        self.look_at_stack()
        for name in STABLE:
            answer = self.ask("notes", "GET", "/remora/v1/lora", params={"name": name})
            if answer is not None:
                self._notes(name, answer)


class Pool:
    """Requests for pictures that are the same for all clients."""

    def __init__(self, random: Random, number: int = 24) -> None:
        self.requests = [self.request(random) for _ in range(number)]

    @staticmethod
    def request(random: Random) -> dict[str, Any]:
        names = random.sample(STABLE, random.randint(0, 3))
        tags = [
            random.choice(_TAGS).format(
                name=name, strength=random.randint(-5, 15) / 10, other=random.randint(1, 9) / 10
            )
            for name in names
        ]
        return {
            "prompt": " ".join([random.choice(_WORDS), *(f"<lora:{tag}>" for tag in tags)]),
            "steps": random.randint(2, 4),
            "width": random.choice([64, 96]),
            "height": random.choice([64, 96]),
            "seed": random.randrange(1000),
            "cfg_scale": random.choice([1, 5]),
            "sampler_name": random.choice(["Euler", "DDIM", "Euler a"]),
            "n_iter": random.choice([1, 1, 2]),
            "batch_size": random.choice([1, 1, 2]),
            "save_images": random.random() < 0.3,
        }


class Crowd:
    """Clients on threads of their own, which can be made to pause.

    Args:
        clients: they.
    """

    def __init__(self, clients: list[Client], ledger: Ledger) -> None:
        self.clients = clients
        self._ledger = ledger
        self._go, self._end = threading.Event(), threading.Event()
        self._busy = threading.Semaphore(len(clients))
        self._threads = [threading.Thread(target=self._run, args=(client,), daemon=True) for client in clients]
        for thread in self._threads:
            thread.start()

    def go(self) -> None:
        self._go.set()

    def pause(self) -> None:
        """Wait until all have the answers to what they asked for."""
        self._go.clear()
        for _ in self.clients:
            self._busy.acquire()
        for _ in self.clients:
            self._busy.release()

    def end(self) -> None:
        self._end.set()
        self._go.set()
        for thread in self._threads:
            thread.join()
        for client in self.clients:
            client.close()

    def _run(self, client: Client) -> None:
        while not self._end.is_set():
            self._go.wait()
            with self._busy:
                if not self._go.is_set() or self._end.is_set():
                    continue
                try:
                    client.step()
                except Exception as error:  # noqa: BLE001  # an answer that nobody foresaw is a wrong one
                    self._ledger.went_wrong("client", f"client {client.name} could not read an answer: {error!r}")


def _stack(data: Mapping[str, Any]) -> tuple[bool, tuple[tuple[Any, ...], ...]]:
    """Return a stack as values that can be compared."""
    defaults = {"name": "", "on": True, "unet": 1.0, "text_encoder": 1.0, "more": ""}
    entries = (tuple({**defaults, **entry}.values()) for entry in data["entries"])
    return data["always_on"], tuple(entries)
