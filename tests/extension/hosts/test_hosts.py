from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
from torch import Tensor, nn

from extension import hosts
from extension.hosts import Host, current_host, known_hosts
from extension.hosts._webui import WebUIHost
from extension.hosts.forge_neo import ForgeNeoHost
from extension.hosts.standalone import STANDALONE, StandaloneHost


class Fake(StandaloneHost):
    """A host of another name."""

    def __init__(self, name: str, before: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.name, self.before = name, before  # type: ignore[misc]
        self.open([], {})


def test_no_host_is_current_by_itself() -> None:
    assert current_host() is None


def test_a_file_that_is_added_is_found_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "added.py").write_text(
        "from extension.hosts.standalone import StandaloneHost\n"
        "class Added(StandaloneHost):\n    name = 'added'\n"
        "ADDED = Added()\n"
    )
    (tmp_path / "_helper.py").write_text("raise RuntimeError('no plug-in')")
    monkeypatch.setattr(hosts, "__path__", [*hosts.__path__, str(tmp_path)])
    try:
        assert {host.name for host in known_hosts()} >= {"added", "standalone"}
    finally:
        sys.modules.pop("extension.hosts.added", None)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_fork_is_asked_before_what_it_is_a_fork_of(order: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    both = (Fake("original"), Fake("fork", before=("original",)))
    monkeypatch.setattr(hosts, "known_hosts", lambda: iter([both[index] for index in order]))
    found = current_host()
    assert found is not None
    assert found.name == "fork"


def test_the_standalone_host_serves_what_lora_can_change(tmp_path: Path) -> None:
    host = StandaloneHost()
    assert not host.is_current()
    host.open([tmp_path], {"a": 1})
    unet, text = nn.Linear(1, 1), nn.Linear(1, 1)
    host.set_components({"unet": unet, "vae": nn.Linear(1, 1), "text_encoder_2": text, "scheduler": ModuleType("x")})
    assert host.is_current()
    assert dict(host.components()) == {"unet": unet, "text_encoder_2": text}
    assert list(host.adapter_dirs()) == [tmp_path]
    assert host.option("a") == 1
    with pytest.raises(KeyError):
        host.set_option("b", 1)
    host.close()
    assert not host.is_current()
    assert not host.components()


def test_the_standalone_host_says_where_its_weights_are(tmp_path: Path) -> None:
    host = StandaloneHost()
    assert not host.checkpoints()
    host.set_components({}, {"unet": [tmp_path / "a.safetensors"]})
    assert host.checkpoints() == {"unet": [tmp_path / "a.safetensors"]}
    host.set_components({})
    assert not host.checkpoints()


def test_the_standalone_host_lists_the_models_of_one_form_in_one_folder(tmp_path: Path) -> None:
    host = StandaloneHost()
    assert not host.models()
    for name in ("one", "two", ".unfinished"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").touch()
        (tmp_path / f"{name}.safetensors").touch()
    (tmp_path / "pictures").mkdir()
    host.set_components({}, model=tmp_path / "two")
    assert host.models() == {name: tmp_path / name for name in ("one", "two")}
    host.set_components({}, model=tmp_path / "two.safetensors")
    assert host.models() == {name: tmp_path / f"{name}.safetensors" for name in ("one", "two")}


def test_a_host_takes_no_embeddings_by_itself_and_says_so() -> None:
    host = Fake("plain")
    assert host.use_embeddings({}) == []
    (sentence,) = host.use_embeddings({"mychar": {}})
    assert sentence == "embedding 'mychar' is read as plain words: plain takes none from a LoRA file"


def test_the_former_pipeline_gives_its_embeddings_up() -> None:
    host, seen = StandaloneHost(), []

    def take(embeddings: Mapping[str, Mapping[str, Tensor]]) -> list[str]:
        seen.append(dict(embeddings))
        return ["noted"]

    host.set_components({}, use_embeddings=take)
    assert host.use_embeddings({"mychar": {}}) == ["noted"]
    host.set_components({})
    assert seen == [{"mychar": {}}, {}]
    assert host.use_embeddings({}) == []


def test_every_host_answers_the_whole_contract() -> None:
    names = [host.name for host in known_hosts()]
    assert len(set(names)) == len(names)
    for host in known_hosts():
        assert isinstance(host, Host)
        assert host.is_current() is (host is STANDALONE and STANDALONE._open)
        assert all(isinstance(kind, type) for kind in host.layer_classes())


def test_the_page_of_web_uis_names_every_option_of_lora_folders() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hosts.md").read_text(encoding="utf-8")
    known = {*WebUIHost.lora_dir_flags, *ForgeNeoHost.lora_dir_flags} - {"lyco_dir"}  # of older versions
    assert [one for one in sorted(known) if f"`--{one.replace('_', '-')}`" not in page] == []
