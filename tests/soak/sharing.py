"""Change one LoRA folder in two web UIs at once: `python -m tests.soak.sharing`.

Each web UI has some clients, as tabs of a browser are. They change notes, tags, ratings, places, names and presets of
the same few LoRA, delete files and take changes back, with lists that another client has made old meanwhile.

After that, every acknowledged change must be kept: the last one of the same field, and every field of a file. A LoRA
must be in one place, with the files beside it and nothing half or left over. Both web UIs must list what is there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from extension.library import Index
from extension.library.moves import DELETED
from extension.library.walk import TRASH, id_of
from extension.store import LOCK_FILE
from lib_lora import AdapterFile

from .ledger import EVER, Ledger, Pending
from .served import ROOT, Served

CLIENTS = 3
"""Of each web UI."""
FILES = 12
FOLDERS = ("", "a", "b", "a/c")
USED = "stripes"
"""The LoRA that pictures are made with."""
_OK, _REFUSALS = 200, (404, 412, 422)
_TAGS = ("soft", "sharp", "old", "new")
_ENDS = (".safetensors", ".json", ".preview.png", ".civitai.info")
_OLD = 8  # changes after which a client lists the files again
_PICTURES = 5  # of each client
_FIELDS = ("words", "negative", "notes", "rating", "favourite", "strength")
_NOTES, _TAG, _PLACE, _PRESET = "notes", "tags", "places", "presets"
_TRASHED = "trash"
_SETTLED = 20.0  # seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run to the end; returns the exit status: 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.sharing", description=__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=3000, help="how many (default: 3000)")
    parser.add_argument("--shared", action="store_true", help="one data folder for both, and not one for each")
    parser.add_argument("--seed", type=int, default=26)
    arguments = parser.parse_args(argv)
    with TemporaryDirectory(prefix="remora-sharing-") as name:
        folder = Path(name)
        ledger = Ledger(folder)
        data = [folder / "data" / ("both" if arguments.shared else one) for one in "ab"]
        loras = made(folder / "loras")
        servers = [
            Served(one, loras, own, folder / f"pictures-{one}", folder, ledger)
            for one, own in zip("ab", data, strict=True)
        ]
        try:
            for server in servers:
                server.start()
            trial = Trial(servers, loras, ledger, arguments.changes, arguments.seed)
            trial.run()
            trial.check(data)
        finally:
            for server in servers:
                server.end()
        trial.count_uses(data)
    for text in ledger.wrong:
        sys.stdout.write(f"{text}\n")
    told = ", ".join(f"{count} {what}" for what, count in sorted(ledger.requests.items()))
    sys.stdout.write(f"{told}; {ledger.conflicts} refused; {len(ledger.wrong)} wrong\n")
    return 1 if ledger.wrong else 0


def made(folder: Path) -> Path:
    """Make LoRA that their headers tell apart, each with files beside it."""
    folder.mkdir()
    shutil.copy(ROOT / "demo" / "loras" / f"{USED}.safetensors", folder)
    source = AdapterFile.open(folder / f"{USED}.safetensors").path.read_bytes()
    length = int.from_bytes(source[:8], "little")
    header = json.loads(source[8 : 8 + length])
    for number in range(FILES):
        own = f"lora-{number}"
        header["__metadata__"] = {**header.get("__metadata__", {}), "ss_output_name": own}
        text = json.dumps(header).encode()
        path = folder / f"{own}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + source[8 + length :])
        if number % 2:  # the others have none until somebody notes something
            path.with_suffix(".json").write_text(json.dumps({"marker": own}))
        path.with_suffix(".preview.png").write_bytes(b"\x89PNG" + own.encode())
        path.with_suffix(".civitai.info").write_text(json.dumps({"marker": own}))
    return folder


class Trial:
    """The clients of two web UIs, and what they must find at the end."""

    def __init__(self, servers: Sequence[Served], loras: Path, ledger: Ledger, changes: int, seed: int) -> None:
        self._servers, self._loras, self._ledger = servers, loras, ledger
        self._shares = servers[0].folders[1] == servers[1].folders[1]
        self.clients = [
            Tab(f"{server.name}{number}", server, self._shares, loras, ledger, changes // (CLIENTS * 2), seed)
            for server in servers
            for number in range(CLIENTS)
        ]

    def run(self) -> None:
        """Have all clients make their changes at once."""
        threads = [threading.Thread(target=one.run, name=one.name) for one in self.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def check(self, data: Sequence[Path]) -> None:
        """Look at the files, and at what both web UIs say of them."""
        found = dict(self._found())
        self._compare(_PLACE, {own: place for own, (place, _) in found.items()}, whole=False)
        told = {own: json.loads(notes.read_text()) if notes.exists() else {} for own, (_, notes) in found.items()}
        self._compare(_NOTES, {(own, one): _noted(of)[one] for own, of in told.items() for one in _FIELDS}, whole=False)
        tags = {(own, tag): True for own, of in told.items() for tag in of.get("tags", [])}
        self._compare(_TAG, tags)
        for own, of in told.items():
            if of.get("marker", own) != own or ("marker" not in of and int(own.partition("-")[2]) % 2):
                self._wrong(f"{own} has the notes of {of.get('marker')}")
        there = {own: place for own, (place, _) in found.items() if place != _TRASHED}
        until = time.monotonic() + _SETTLED
        while (problem := self._differences(there)) and time.monotonic() < until:
            time.sleep(0.5)
        if problem:
            self._wrong(problem)
        for server, folder in zip(self._servers, data, strict=True):
            self._kept(server, folder)

    def _found(self) -> Iterator[tuple[str, tuple[str, Path]]]:
        """Yield each LoRA with its place and its notes; note what is twice, half or left over."""
        files = [path for path in sorted(self._loras.rglob("*")) if path.is_file() and path.name != LOCK_FILE]
        left, seen = set(files), Counter[str]()
        for path in files:
            name = path.name.removesuffix(DELETED)
            if not name.endswith(".safetensors") or not path.stat().st_size:
                continue
            stem, own = name.removesuffix(".safetensors"), _own_name(path)
            end = path.name[len(name) :]
            beside = [path.with_name(f"{stem}{one}{end}") for one in _ENDS]
            left -= {path, *beside}
            seen[own] += 1
            if own == USED:
                continue
            for one in beside[2:]:
                if not one.exists() or own.encode() not in one.read_bytes():
                    self._wrong(f"{one.name} is not beside {own}")
            place = path.relative_to(self._loras).with_suffix("").as_posix()
            yield own, (_TRASHED if TRASH in path.parts else place, beside[1])
        wanted = Counter({f"lora-{number}": 1 for number in range(FILES)} | {USED: 1})
        if seen != wanted:
            self._wrong(f"there are {seen}")
        if left:
            self._wrong(f"these are left over: {sorted(map(str, left))}")

    def _differences(self, there: Mapping[str, str]) -> str:
        """Return what the web UIs list differently once they have looked again, or unlike what is there."""
        listed = [self._listed(server) for server in self._servers]
        if listed[0] != listed[1]:
            return f"the web UIs list different files: {listed}"
        files = {own: one["file"] for own, one in listed[0].items() if own != USED}
        return "" if files == there else f"{files} are listed, and {there} are there"

    def _listed(self, server: Served) -> dict[str, dict[str, Any]]:
        """Return what a web UI lists."""
        told = httpx.post(f"{server.url}/remora/v1/refresh", timeout=_SETTLED).json()
        return {one["alias"]: {name: one[name] for name in ("file", "tags", *_FIELDS)} for one in told["loras"]}

    def _kept(self, server: Served, folder: Path) -> None:
        """Look at what one web UI keeps for itself."""
        told = httpx.get(f"{server.url}/remora/v1/presets", timeout=_SETTLED).json()
        who = "" if self._shares else server.name
        self._compare(_PRESET + who, {one["name"]: one["text"] for one in told["presets"]})
        if left := [str(path) for path in folder.rglob("*.tmp")]:
            self._wrong(f"these are left over: {left}")
        moves = folder / "moves.json"
        if moves.exists() and json.loads(moves.read_text()):
            self._wrong(f"moves are not finished: {moves.read_text()}")

    def count_uses(self, data: Sequence[Path]) -> None:
        """Look at the uses that are kept when the web UIs have ended."""
        for server, folder in zip(self._servers, data, strict=True):
            made = sum(client.pictures for client in self.clients if self._shares or client.server is server)
            uses = sum(row.uses for row in Index(folder).rows())
            if uses != made:
                self._wrong(f"server {server.name} keeps {uses} uses of {made}")

    def _compare(self, what: str, found: Mapping[Hashable, Any], *, whole: bool = True) -> None:
        for text in self._ledger.read(what, found, (EVER, EVER), whole=whole):
            self._wrong(text)

    def _wrong(self, text: str) -> None:
        self._ledger.went_wrong("end", text)


class Tab:
    """One client: a tab of a web UI."""

    def __init__(
        self, name: str, server: Served, shares: bool, loras: Path, ledger: Ledger, changes: int, seed: int
    ) -> None:
        self.name = name
        self.server = server
        self._presets = _PRESET + ("" if shares else server.name)
        self._loras, self._ledger, self._changes = loras, ledger, changes
        self._random = Random(f"{seed}/{name}")
        self._http = httpx.Client(base_url=server.url, timeout=180.0, limits=httpx.Limits(keepalive_expiry=2.0))
        self._names = {f"lora-{number}" for number in range(FILES)}
        self._rows: list[dict[str, Any]] = []
        self._undo: list[tuple[str, dict[str, tuple[str, str]]]] = []
        self._etags: dict[str, str] = {}
        self._made = 0
        self.pictures = 0

    def run(self) -> None:
        """Make all changes."""
        actions = [(self.note, 10), (self.note_many, 5), (self.move, 4), (self.rename, 3), (self.delete, 2)]
        actions += [(self.take_back, 4), (self.keep_preset, 3)]
        chosen = self._random.choices([one for one, _ in actions], [often for _, often in actions], k=self._changes)
        every = max(1, self._changes // _PICTURES)
        for number, action in enumerate(chosen):
            if number % _OLD == 0:
                answer = self._ask("GET", "/loras")
                rows = [] if answer is None else answer.json()["loras"]
                self._rows = [row for row in rows if row["alias"] in self._names]
            if number % every == 0:
                self.paint()
            if self._rows:
                action()

    def note(self) -> None:
        """Change some fields of one file, with or without a look at what they were."""
        row = self._random.choice(self._rows)
        fields = self._random.sample(_FIELDS, self._random.randint(1, 3))
        body = {one: self._value(one) for one in fields}
        etag = self._etags.get(row["id"], "*") if self._random.random() < 0.5 else "*"
        pending = self._ledger.writing(_NOTES, {(row["alias"], one): value for one, value in body.items()})
        answer = self._ask("PATCH", "/lora", params={"id": row["id"]}, json=body, headers={"If-Match": etag})
        self._over(pending, answer is not None)
        if answer is not None:
            self._etags[row["id"]] = answer.headers["etag"]
            if answer.json()["alias"] != row["alias"]:
                self._wrong(f"the notes for {row['alias']} went to {answer.json()['alias']}")

    def note_many(self) -> None:
        """Tag and rate several files."""
        rows = self._random.sample(self._rows, min(len(self._rows), self._random.randint(1, 6)))
        add, remove = self._random.sample(_TAGS, 2)
        rating = self._random.randint(0, 5)
        pending = {
            row["id"]: [
                self._ledger.writing(_TAG, {(row["alias"], add): True, (row["alias"], remove): None}),
                self._ledger.writing(_NOTES, {(row["alias"], "rating"): rating}),
            ]
            for row in rows
        }
        body = {"ids": [*pending], "add": [add], "remove": [remove], "rating": rating}
        answer = self._ask("PATCH", "/files", json=body)
        changed = {} if answer is None else dict(answer.json()["changed"])
        for one, writes in pending.items():
            for write in writes:
                self._over(write, one in changed)

    def move(self) -> None:
        """Move several files to a folder."""
        rows = self._random.sample(self._rows, min(len(self._rows), self._random.randint(1, 4)))
        folder = self._random.choice(FOLDERS)
        to = {row["alias"]: (row, "/".join(filter(None, (folder, _stem(row))))) for row in rows}
        self._place(to, "/files/move", {"ids": [row["id"] for row in rows], "folder": folder})

    def rename(self) -> None:
        """Rename a file, now and then as it was called before."""
        row = self._random.choice(self._rows)
        name = f"{row['alias']}-{self._random.randrange(3)}"
        to = {row["alias"]: (row, "/".join(filter(None, (row["folder"], name))))}
        self._place(to, "/files/move", {"ids": [row["id"]], "name": name})

    def delete(self) -> None:
        """Move several files to the trash."""
        rows = self._random.sample(self._rows, min(len(self._rows), self._random.randint(1, 2)))
        self._place({row["alias"]: (row, _TRASHED) for row in rows}, "/files/delete", {"ids": [r["id"] for r in rows]})

    def take_back(self) -> None:
        """Take one of the own changes back."""
        if not self._undo:
            return
        key, places = self._undo.pop(self._random.randrange(len(self._undo)))
        pending = {own: self._ledger.writing(_PLACE, {own: before}) for own, (before, _) in places.items()}
        answer = self._ask("POST", "/files/undo", json={"undo": key})
        back = {} if answer is None else {after for _, after in answer.json()["changed"]}
        for own, (before, _) in places.items():
            self._over(pending[own], id_of(self._loras / f"{before}.safetensors") in back)

    def _place(self, to: Mapping[str, tuple[Mapping[str, Any], str]], path: str, body: Mapping[str, Any]) -> None:
        pending = {own: self._ledger.writing(_PLACE, {own: place}) for own, (_, place) in to.items()}
        answer = self._ask("POST", path, json=body)
        told = {"changed": [], "undo": ""} if answer is None else answer.json()
        changed = {before for before, _ in told["changed"]}
        for own, (row, _) in to.items():
            self._over(pending[own], row["id"] in changed)
        done = {own: (row["file"], place) for own, (row, place) in to.items() if row["id"] in changed}
        if told["undo"]:
            self._undo.append((told["undo"], done))

    def keep_preset(self) -> None:
        """Save, rename or remove a preset."""
        name = f"preset {self._random.randrange(6)}"
        text = f"<lora:nobody-{self._random.randrange(1000)}:0.5>"
        if self._random.random() < 0.2:
            pending = self._ledger.writing(self._presets, {name: None})
            answer = self._ask("DELETE", "/preset", params={"name": name})
        else:
            pending = self._ledger.writing(self._presets, {name: text})
            answer = self._ask("PUT", "/preset", params={"name": name}, json={"text": text})
        self._over(pending, answer is not None)

    def paint(self) -> None:
        """Make a picture with a LoRA."""
        body = {"prompt": f"a red circle <lora:{USED}:1>", "steps": 1, "width": 64, "height": 64}
        self._http.post("/sdapi/v1/txt2img", json=body).raise_for_status()
        self.pictures += 1

    def _value(self, field: str) -> Any:
        self._made += 1
        match field:
            case "rating":
                return self._random.randint(0, 5)
            case "favourite":
                return self._random.random() < 0.5
            case "strength":
                return self._random.randint(1, 99) / 10
            case _:
                return f"{self.name} {self._made}"

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """Ask for something; return None where it was refused."""
        answer = self._http.request(method, f"/remora/v1{path}", **more)
        with self._ledger.lock:
            self._ledger.requests[f"{method} {path}"] += 1
            self._ledger.conflicts += answer.status_code in _REFUSALS
        if answer.status_code == _OK:
            return answer
        if answer.status_code not in _REFUSALS:
            self._wrong(f"{method} {path} {more}: {answer.status_code} {answer.text}")
        return None

    def _over(self, pending: Pending, done: bool) -> None:
        if done:
            pending.kept()
        else:
            pending.refused()

    def _wrong(self, text: str) -> None:
        self._ledger.went_wrong(self.name, text)


def _own_name(path: Path) -> str:
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    own: str = header.get("__metadata__", {}).get("ss_output_name", USED)
    return own if own.startswith("lora-") else USED


def _stem(row: Mapping[str, Any]) -> str:
    return str(row["file"]).rpartition("/")[2]


def _noted(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as `name.json` has them."""
    own = data.get("remora", {})
    return {
        "words": data.get("activation text"),
        "negative": data.get("negative text"),
        "notes": data.get("notes"),
        "rating": own.get("rating"),
        "favourite": own.get("favourite"),
        "strength": data.get("preferred weight"),
    }


if __name__ == "__main__":
    sys.exit(main())
