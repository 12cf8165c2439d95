"""The session between a host and the engine: what is in force, and what a failure leaves."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from extension.generation.activation import Activation
from extension.generation.options import TABLE
from extension.generation.request import Memory, Settings
from extension.generation.session import Session
from extension.generation.state import state_of
from extension.hosts.standalone import StandaloneHost
from extension.library.catalog import CatalogError
from extension.standalone.demo import Demo
from extension.text.prompt import parse, parse_arguments
from extension.text.tag import Tag
from lib_lora import Engine, FileError, LoraError, PickleError, Reading
from lib_lora.inspection.skeleton import skeleton
from tests.fakes import accelerator
from tests.fakes.demo import demo_pipeline
from tests.fakes.files import pair, save

PROJECTION = "layers.0.mlp.fc1"  # of the text encoder, (512, 128)
KEY = "lora_te_text_model_encoder_layers_0_mlp_fc1"


@dataclass
class Setup:
    """A session over a text encoder, with a folder of LoRAs."""

    host: StandaloneHost
    session: Session
    encoder: nn.Module
    folder: Path

    def weight(self) -> Tensor:
        """One weight that every LoRA made here changes."""
        (name,) = (name for name, _ in self.encoder.named_modules() if name.endswith(PROJECTION))
        return self.encoder.get_submodule(name).get_parameter("weight")

    def save(self, name: str, seed: int = 0, **tensors: Tensor) -> None:
        """Add a LoRA on that weight to the folder, with further tensors under keys with `__` for `.`."""
        made = pair(KEY, (512, 128), 2, seed=seed, size=0.3)
        save(self.folder / f"{name}.safetensors", made | {k.replace("__", "."): v for k, v in tensors.items()})
        self.session.catalog.refresh()

    def output(self) -> Tensor:
        with torch.no_grad():
            return self.encoder(torch.arange(10)[None]).last_hidden_state


@pytest.fixture
def setup(demo: Demo, tmp_path: Path) -> Iterator[Setup]:
    for path in demo.loras.iterdir():
        shutil.copy(path, tmp_path)
    pipeline = demo_pipeline()
    host = StandaloneHost()
    host.open([tmp_path], {})
    host.set_components(pipeline.components)
    session = Session(host)
    yield Setup(host, session, pipeline.text_encoder.eval(), tmp_path)
    session.close()


@pytest.mark.parametrize("mode", ["r+b", "wb"])
def test_a_file_that_is_written_in_place_is_taken_whole_or_not_at_all(
    setup: Setup, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a training that saves its latest state under one name, slowly."""

    def output_of(name: str) -> Tensor:
        setup.session.begin_batch([[Tag(name, 1, 1)]])
        made = setup.output()
        setup.session.end()
        return made

    setup.save("latest", seed=1)
    setup.save("next", seed=2)
    latest, wanted = setup.folder / "latest.safetensors", (setup.folder / "next.safetensors").read_bytes()
    former, expected = output_of("latest"), output_of("next")
    assert not torch.equal(former, expected)
    stopped = threading.Event()

    def write() -> None:
        with latest.open(mode) as stream:
            for begin in range(0, len(wanted), len(wanted) // 12):
                stream.write(wanted[begin : begin + len(wanted) // 12])
                stream.flush()
                stopped.wait(0.1)

    walk = sys.modules["extension.library.walk"]  # the room has a function of this name
    for patience in (walk._PATIENCE, 0.2):
        writer = threading.Thread(target=write)
        writer.start()
        monkeypatch.setattr(walk, "_PATIENCE", patience)
        time.sleep(0.3)
        if patience > 1:
            assert torch.equal(output_of("latest"), expected)
        else:
            # the latter where the machine lets the writer rest for a second
            with pytest.raises((CatalogError, FileError), match=r"'latest' is being written by another|is truncated"):
                output_of("latest")
        writer.join()


def test_a_generation_has_its_loras_and_the_end_takes_them_off(setup: Setup) -> None:
    before = setup.output()
    activation = setup.session.begin_batch([[Tag("zorp", 0.8, 0.8)]])
    assert activation.active[0].report.hit == 264
    assert activation.active[0].file.name == "zorp"
    assert not torch.equal(setup.output(), before)
    setup.session.end()
    assert torch.equal(setup.output(), before)


def test_a_lora_of_several_components_is_applied_by_one_tag(setup: Setup) -> None:
    """A part that is written again acts at the next picture; a faulty one costs itself, with one sentence."""

    def part(name: str, module: str, shape: tuple[int, int], seed: int) -> Path:
        made = pair("x", shape, 2, seed=seed, size=0.3)
        letters = {"x.lora_down.weight": "A", "x.lora_up.weight": "B"}
        keys = {f"base_model.model.{module}.lora_{letters[key]}.weight": made[key] for key in letters}
        path = setup.folder / "sks" / name / "adapter_model.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name("adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')
        save(path, keys)
        setup.session.catalog.refresh()
        return path

    def picture() -> tuple[Tensor, Activation]:
        activation = setup.session.begin_batch([[Tag("sks")]])
        made = setup.output()
        setup.session.end()
        return made, activation

    unet, _ = next(one for one in setup.host.components()["unet"].named_modules() if isinstance(one[1], nn.Linear))
    shape = setup.host.components()["unet"].get_submodule(unet).weight.shape
    part("unet", unet, tuple(shape), 0)
    text_encoder = part("text_encoder", f"text_model.encoder.{PROJECTION}", (512, 128), 1)
    first, activation = picture()
    assert activation.active[0].report.components == {"unet", "text_encoder"}
    part("text_encoder", f"text_model.encoder.{PROJECTION}", (512, 128), 2)
    second, again = picture()
    assert not torch.equal(first, second)
    assert activation.text_keys != again.text_keys
    text_encoder.write_bytes(b"")
    setup.session.catalog.refresh()
    setup.session.begin_batch([[Tag("sks")]])
    (outcome,) = setup.session.outcomes
    sentence = "its text_encoder is not used: it is empty (0 bytes); download it again"
    assert (outcome.state, outcome.reason, outcome.sentence) == ("partly", sentence, f"sks: {sentence}")
    assert not outcome.advice, "another model would not help"


@pytest.mark.parametrize("tags", [[Tag("zorp")], []], ids=["with LoRA", "without"])
def test_work_for_later_rests_while_pictures_are_made(setup: Setup, tags: list[Tag]) -> None:
    busy = setup.session.catalog.copies._busy
    assert not busy()
    setup.session.begin_batch([tags])
    assert busy()
    setup.session.pictures_made([])  # SD.Next keeps the LoRA in force
    assert not busy()
    setup.session.begin_batch([tags])
    setup.session.end()
    assert not busy()


def test_a_schedule_beyond_the_last_step_has_a_note_in_the_report_and_in_the_parameters(setup: Setup) -> None:
    setup.host.add_options(TABLE)
    late = parse("[cat:<lora:zorp:1>:35]", on=True).tags
    setup.session.begin_batch([late], always=parse("<lora:stripes:1:stop=30>").tags, steps=20)
    notes = [
        "zorp acts in no step: it begins after step 35, and the picture has 20 steps",
        "stripes acts until the end: it is to stop at step 30, and the picture has 20 steps",
    ]
    assert sorted(state_of(setup.session)["notes"]) == sorted(notes)
    assert set(notes) <= set(setup.session.warnings())
    setup.session.follow_model("hires")
    assert setup.session.last.kept == (), "the second pass has steps of its own"
    setup.session.begin_batch([late], steps=40)
    assert state_of(setup.session)["notes"] == []


def test_no_wishes_switch_all_off(setup: Setup) -> None:
    before = setup.output()
    setup.session.begin_batch([[Tag("zorp")]])
    assert setup.session.begin_batch([[]]).active == ()
    assert torch.equal(setup.output(), before)
    assert setup.session.last.active == ()


def test_rank_and_multiplier_reach_the_engine(setup: Setup) -> None:
    setup.save("pair")
    whole = setup.session.begin_batch([[Tag("pair")]]) and setup.output()
    cut = setup.session.begin_batch([[Tag("pair", rank=1)]]) and setup.output()
    weak = setup.session.begin_batch([[Tag("pair", 0.5, 1.0)]]) and setup.output()
    setup.session.end()
    assert not torch.equal(whole, cut)
    assert not torch.equal(whole, weak)
    assert not torch.equal(cut, weak)


def test_a_failure_leaves_in_force_what_was(setup: Setup) -> None:
    setup.session.begin_batch([[Tag("zorp")]])
    before = setup.output()
    (setup.folder / "old.pt").write_bytes(b"PK\x03\x04")
    (setup.folder / "bad.safetensors").write_bytes(b"\xff" * 32)
    setup.session.catalog.refresh()
    for name, kind in (("nope", CatalogError), ("old", FileError), ("bad", FileError)):
        with pytest.raises(kind, match=name):
            setup.session.begin_batch([[Tag("stripes"), Tag(name)]])
        assert torch.equal(setup.output(), before)


def test_what_fails_is_skipped_with_its_reason(setup: Setup) -> None:
    (setup.folder / "old.pt").write_bytes(b"PK\x03\x04")
    (setup.folder / "bad.safetensors").write_bytes(b"\xff" * 32)
    setup.session.catalog.refresh()
    wishes = [Tag("bad"), Tag("zorp"), Tag("nope"), Tag("old"), Tag("stripes")]
    activation = setup.session.begin_batch([wishes], Settings(skip_bad=True))
    assert [active.name for active in activation.active] == ["zorp", "stripes"]
    assert len(activation.skipped) == 3
    for name in ("bad.safetensors", "'nope'", "old.pt"):
        assert sum(name in reason for reason in activation.skipped) == 1
    alone = setup.output()
    setup.session.begin_batch([[Tag("zorp"), Tag("stripes")]])
    assert torch.equal(setup.output(), alone)


def test_a_pickle_is_refused_with_the_way_to_convert_it(setup: Setup) -> None:
    (setup.folder / "old.ckpt").write_bytes(b"PK\x03\x04")
    with pytest.raises(PickleError, match="convert it"):
        setup.session.begin_batch([[Tag("old")]])


def test_a_new_model_is_followed_and_the_old_one_is_clean(setup: Setup) -> None:
    before = setup.output()
    setup.session.begin_batch([[Tag("zorp")]])
    other = demo_pipeline()
    setup.host.set_components(other.components)
    setup.session.model_changed()
    assert torch.equal(setup.output(), before)
    old, setup.encoder = setup.encoder, other.text_encoder.eval()
    fresh = setup.output()
    setup.session.begin_batch([[Tag("zorp")]])
    assert not torch.equal(setup.output(), fresh)
    setup.encoder = old
    assert torch.equal(setup.output(), before)


def test_closing_takes_everything_off_and_a_later_begin_starts_anew(setup: Setup) -> None:
    before = setup.output()
    setup.session.begin_batch([[Tag("zorp")]])
    with_lora = setup.output()
    setup.session.close()
    assert torch.equal(setup.output(), before)
    setup.session.begin_batch([[Tag("zorp")]])
    assert torch.equal(setup.output(), with_lora)


def test_what_is_live_writes_no_weight(setup: Setup) -> None:
    version = setup.weight()._version
    setup.session.begin_batch([[Tag("zorp")]])
    assert setup.weight()._version == version
    assert setup.session.last.report.merged == 0
    assert len(setup.session.last.lines()) == 1


def test_files_of_one_name_are_told_apart_by_their_folders(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    for folder in ("one", "two"):
        (setup.folder / folder).mkdir()
        setup.save(f"{folder}/same")
    with caplog.at_level(logging.INFO, "extension"):
        activation = setup.session.begin_batch([[Tag("one/same"), Tag("two/same")]], Settings(mode="merged"))
    names = [line.partition(":")[0] for line in activation.lines()]
    assert names == ["one/same", "two/same", "1 layer merged"]
    logged = [line.partition("remora: ")[2].partition(":")[0] for line in caplog.messages]
    assert {"one/same", "two/same"} <= set(logged)


def test_what_is_merged_is_in_the_weights_until_the_end(setup: Setup) -> None:
    before, live = setup.weight().clone(), setup.session.begin_batch([[Tag("zorp")]]) and setup.output()
    activation = setup.session.begin_batch([[Tag("zorp")]], Settings(mode="merged"))
    assert not torch.equal(setup.weight(), before)
    assert (setup.output() - live).abs().max() <= 1e-5 * live.abs().max()  # fp32, the same sum in another order
    assert activation.report.merged == 264
    assert activation.lines()[-1] == "264 layers merged"
    setup.session.end()
    assert torch.equal(setup.weight(), before)


def test_order_counts_where_the_setting_says_so(setup: Setup) -> None:
    setup.save("first")
    setup.save("dora", 1, **{f"{KEY}__dora_scale": torch.full((1, 128), 0.5)})
    outputs = {}
    for in_order in (False, True):
        for names in (("first", "dora"), ("dora", "first")):
            setup.session.begin_batch([[Tag(name) for name in names]], Settings(in_order=in_order))
            outputs[in_order, names[0]] = setup.output()
    assert torch.equal(outputs[False, "first"], outputs[False, "dora"])
    assert not torch.equal(outputs[True, "first"], outputs[True, "dora"])
    assert setup.session.last.active[0].report.kinds == {"lora+dora": 1}


def test_how_files_are_read_counts_from_the_next_picture_on(setup: Setup) -> None:
    tensors = pair(KEY, (512, 128), 4, size=0.3)
    metadata = {"ss_network_args": '{"algo": "dylora", "block_size": "2"}'}
    save(setup.folder / "dylora.safetensors", tensors, metadata)
    outputs, keys = [], []
    for strength, dylora in ((1.0, False), (1.0, True), (2.0, False), (1.0, False)):
        settings = Settings(reading=Reading(dylora_as_trained=dylora))
        activation = setup.session.begin_batch([[Tag("dylora", strength, strength)]], settings)
        outputs.append(setup.output())
        keys.append(activation.text_key)
    assert torch.equal(outputs[0], outputs[3])
    assert (outputs[1] - outputs[2]).abs().max() <= 1e-5 * outputs[2].abs().max()
    assert not torch.equal(outputs[1], outputs[0])
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3, "encoded prompts are kept by this"


def serve_sd1(setup: Setup) -> None:
    """Return a model of two layers, of which one is as only Stable Diffusion 1 has it."""
    attention = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"
    unet = skeleton({f"{attention}.weight": (4, 768), "time_embedding.linear_1.weight": (8, 4)}).to_empty(device="cpu")
    setup.host.set_components({"unet": unet})


def save_xl(setup: Setup, name: str) -> None:
    """Return a LoRA as for SDXL, of which one layer fits."""
    tensors = pair("lora_unet_time_embedding_linear_1", (8, 4), 2)
    tensors |= pair("lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k", (4, 2048), 2)
    save(setup.folder / f"{name}.safetensors", tensors)


def test_a_lora_for_other_models_is_warned_of_each_time_and_logged_once(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    serve_sd1(setup)
    save_xl(setup, "xl")
    for _ in range(3):
        activation = setup.session.begin_batch([[Tag("xl")]])
        warned = "made for Stable Diffusion XL, the loaded model is Stable Diffusion 1.x: 1 of 2 layers fit"
        assert activation.warnings == (f"xl: {warned}",)
    assert caplog.text.count(warned) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    save_xl(setup, "xl")
    setup.session.begin_batch([[Tag("xl")]])
    assert caplog.text.count(warned) == 2, "it is another file now"


def test_what_became_of_a_file_is_logged_once_for_each_model(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    setup.save("one")
    caplog.set_level("INFO")
    for _ in range(2):
        setup.session.begin_batch([[Tag("one"), Tag("zorp")]])
        setup.session.end()
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition(" (")[0] for line in told] == [
        "remora: one: 1 of 1 layers",
        "remora: zorp: 264 of 264 layers",
    ]
    setup.host.set_components({"text_encoder": setup.encoder})
    setup.session.begin_batch([[Tag("zorp")]], Settings(mode="merged"))
    told = [record.getMessage() for record in caplog.records[2:]]
    assert told[0].startswith("remora: zorp: 18 of 264 layers")
    assert caplog.records[2].levelname == "WARNING", "keys go unused here"
    assert told[1:] == ["remora: 18 layers merged"]


def test_the_engine_is_made_anew_where_memory_is_used_in_another_way(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Memory] = []

    def make(host: StandaloneHost, memory: Memory) -> Engine:
        made.append(memory)
        return Engine(host.components())

    monkeypatch.setattr("extension.generation.served.make_engine", make)
    before, half = setup.output(), Memory(storage="bfloat16")
    for memory in (Memory(), Memory(), half, half):
        setup.session.begin_batch([[Tag("zorp")]], Settings(memory=memory))
    assert made == [Memory(), half]
    setup.session.end()
    assert torch.equal(setup.output(), before)


def test_memory_is_used_as_the_settings_say(setup: Setup) -> None:
    setup.save("one")  # in single precision
    placed, kept = {}, {}
    for memory in (Memory(), Memory(storage="bfloat16"), Memory(cache_bytes=0)):
        setup.session.begin_batch([[Tag("one")]], Settings(memory=memory))
        setup.output()
        engine = setup.session.model.engine
        assert engine is not None
        placed[memory] = sum(engine.memory().placed.values())
        setup.session.end()
        kept[memory] = engine.memory().files
    assert placed[Memory(storage="bfloat16")] < 0.6 * placed[Memory()]
    assert kept[Memory()] > 0
    assert kept[Memory(cache_bytes=0)] == 0


def test_a_budget_of_the_device_is_kept(setup: Setup) -> None:
    budget = 1024
    with accelerator.simulated():
        setup.encoder.requires_grad_(False).to(accelerator.device())
        tokens = torch.arange(10)[None].to(accelerator.device())
        outputs = []
        for memory in (Memory(), Memory(device_budget=budget)):
            setup.session.begin_batch([[Tag("zorp")]], Settings(memory=memory))
            with torch.no_grad():
                outputs.append(setup.encoder(tokens).last_hidden_state.cpu())
            assert setup.session.model.engine is not None
            placed = setup.session.model.engine.memory().placed.get(str(accelerator.device()), 0)
            assert (placed <= budget) == (memory.device_budget is not None)
            setup.session.end()
        setup.encoder.cpu()
    assert torch.equal(*outputs)


def test_weights_are_put_back_from_the_checkpoint_the_host_names(
    demo: Demo, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"unet": [demo.model / "unet" / "diffusion_pytorch_model.safetensors"]}
    monkeypatch.setattr(setup.host, "checkpoints", lambda: files)
    setup.session.begin_batch([[Tag("zorp")]], Settings(mode="merged"))
    assert setup.session.model.engine is not None
    assert set(setup.session.model.engine._model._opened) == {"unet"}


class Lent:
    """What a host was handed."""

    def __init__(self, setup: Setup) -> None:
        self.seen: list[dict[str, dict[str, Tensor]]] = []
        self.answer: list[str] = []
        setup.host.set_components(setup.host.components(), None, self)

    def __call__(self, embeddings: dict[str, dict[str, Tensor]]) -> list[str]:
        self.seen.append({name: dict(parts) for name, parts in embeddings.items()})
        return self.answer if embeddings else []


def test_embeddings_of_the_loras_are_lent_to_the_host_until_the_end(setup: Setup) -> None:
    lent = Lent(setup)
    setup.save("one", bundle_emb__mychar__clip_l=torch.ones(2, 128))
    setup.session.begin_batch([[Tag("one"), Tag("zorp")]])
    assert torch.equal(lent.seen[-1]["mychar"]["clip_l"], torch.ones(2, 128))
    setup.session.begin_batch([[Tag("zorp")]])
    assert lent.seen[-1] == {}
    setup.session.begin_batch([[Tag("one")]])
    setup.session.end()
    assert lent.seen[-1] == {}


def test_of_two_embeddings_of_one_name_the_first_is_lent_and_that_is_said(setup: Setup) -> None:
    lent = Lent(setup)
    setup.save("one", bundle_emb__mychar__clip_l=torch.ones(2, 128))
    setup.save("two", bundle_emb__MyChar__clip_l=torch.zeros(2, 128))
    activation = setup.session.begin_batch([[Tag("one"), Tag("two"), Tag("one")]])
    assert list(lent.seen[-1]) == ["mychar"]
    assert activation.notes == ("embedding 'MyChar' is read from one; the one in two is ignored",)


def test_what_a_host_does_not_take_is_noted_each_time_and_logged_once(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.save("one", bundle_emb__mychar__clip_l=torch.ones(2, 128))
    notes = [setup.session.begin_batch([[Tag("one")]]).notes for _ in range(2)]
    assert notes == [("embedding 'mychar' is read as plain words: standalone takes none from a LoRA file",)] * 2
    assert caplog.text.count("is read as plain words") == 1
    assert setup.session.warnings()[-1:] == notes[0], "so that it is in the parameters text"


def test_a_host_that_fails_over_an_embedding_leaves_nothing_in_force(setup: Setup) -> None:
    def fails(embeddings: dict[str, object]) -> list[str]:
        if embeddings:
            raise RuntimeError("no room")
        return []

    before = setup.output()
    setup.host.set_components(setup.host.components(), None, fails)
    setup.save("one", bundle_emb__mychar__clip_l=torch.ones(2, 128))
    with pytest.raises(RuntimeError, match="no room"):
        setup.session.begin_batch([[Tag("one")]])
    assert torch.equal(setup.output(), before)


def test_loras_go_off_even_if_the_host_keeps_an_embedding(setup: Setup) -> None:
    def fails(embeddings: dict[str, object]) -> list[str]:
        if not embeddings:
            raise RuntimeError("cannot let go")
        return []

    before = setup.output()
    setup.save("one", bundle_emb__mychar__clip_l=torch.ones(2, 128))
    setup.host.set_components(setup.host.components(), None, fails)
    setup.session.begin_batch([[Tag("one")]])
    with pytest.raises(RuntimeError, match="cannot let go"):
        setup.session.end()
    assert torch.equal(setup.output(), before)
    setup.host._use_embeddings = None


def test_always_on_loras_act_besides_those_of_the_prompt(setup: Setup) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        setup.save(name, seed)
    setup.session.begin_batch([[Tag("a", 0.5, 0.5), Tag("b")]])
    both = setup.output()
    activation = setup.session.begin_batch([[Tag("b")]], always=[Tag("a", 0.5, 0.5)])
    assert torch.equal(setup.output(), both)
    assert [one.name for one in activation.active] == ["a", "b"]
    assert {position: file.name for position, file in activation.always.items()} == {0: "a"}


@pytest.mark.parametrize("own", [Tag("a", 0.5, 0.5), Tag("a", 0.0, 0.0), Tag("a.safetensors", 0.5, 0.5)])
def test_what_a_prompt_says_of_an_always_on_lora_counts(setup: Setup, own: Tag) -> None:
    setup.save("a")
    alone = setup.session.begin_batch([[own]]) and setup.output()
    activation = setup.session.begin_batch([[own]], always=[Tag("a")])
    assert torch.equal(setup.output(), alone)
    assert activation.always == {}


def test_an_image_that_names_an_always_on_lora_takes_it_from_no_other(setup: Setup) -> None:
    setup.save("a")
    activation = setup.session.begin_batch([[Tag("a", 0.0, 0.0)], []], always=[Tag("a")])
    assert [one.images for one in activation.active] == [(1,)]
    assert list(activation.always) == [0]


def test_a_tag_that_is_off_needs_no_file(setup: Setup) -> None:
    setup.save("a")
    off = Tag("nowhere", 0.0, 0.0)
    assert setup.session.begin_batch([[off]]).active == ()
    assert len(setup.session.begin_batch([[off]], always=[Tag("a")]).active) == 1


def test_a_bad_always_on_lora_is_named_as_such(setup: Setup) -> None:
    (setup.folder / "broken.safetensors").write_bytes(b"x" * 100)
    always = [Tag("nowhere"), Tag("broken")]
    activation = setup.session.begin_batch([[Tag("zorp")]], Settings(skip_bad=True), always=always)
    assert [(one.name, one.missing, one.always_on) for one in activation.left_out] == [
        ("nowhere", True, True),
        ("broken", False, True),
    ]
    assert all(reason.startswith("of the always-on stack: ") for reason in activation.skipped)
    with pytest.raises(LoraError, match="of the always-on stack: LoRA 'nowhere' is not in the LoRA folders"):
        setup.session.begin_batch([[]], always=always)


def test_what_a_generation_failed_for_is_known_until_the_next(setup: Setup) -> None:
    with pytest.raises(CatalogError):
        setup.session.begin_batch([[Tag("zorp"), Tag("nowhere")]])
    (failed,) = setup.session.failed
    assert (failed.name, failed.missing, failed.always_on) == ("nowhere", True, False)
    setup.session.begin_batch([[]])
    assert setup.session.failed == ()


def test_a_failed_generation_tells_every_lora_that_is_bad_without_its_name_in_the_reason(setup: Setup) -> None:
    save(setup.folder / "misfit.safetensors", pair("lora_unet_zzz", (12, 8), 4))
    (setup.folder / "empty.safetensors").write_bytes(b"")
    with pytest.raises(LoraError, match=r"LoRA 'nowhere' is not .+; LoRA 'gone' is not") as caught:
        setup.session.begin_batch([[Tag("nowhere"), Tag("zorp"), Tag("gone")]])
    assert "; ".join(one.sentence for one in setup.session.failed) == str(caught.value)
    always = [Tag("misfit")]
    with pytest.raises(LoraError, match=r"misfit\.safetensors: .+; empty\.safetensors: it is empty"):
        setup.session.begin_batch([[Tag("zorp"), Tag("empty")]], always=always)
    told = state_of_session(setup)["loras"]
    assert [(one["name"], one["always_on"]) for one in told] == [("misfit", True), ("empty", False)]
    assert told[1]["reason"] == "it is empty (0 bytes); download it again"
    assert not told[0]["reason"].startswith(("misfit", "of the always-on"))
    activation = setup.session.begin_batch([[Tag("zorp"), Tag("empty")]], Settings(skip_bad=True), always=always)
    assert [one.name for one in activation.left_out] == ["misfit", "empty"]
    assert [one.name for one in activation.active] == ["zorp"]


def state_of_session(setup: Setup) -> dict[str, Any]:
    setup.host.add_options(TABLE)
    return state_of(setup.session)


def test_a_lora_whose_strength_names_another_component_is_said_to_have_no_effect(setup: Setup) -> None:
    setup.save("encoder only")
    tag = parse_arguments("encoder only:1:module=unet")
    activation = setup.session.begin_batch([[tag]])
    why = "its strength is 0 for all layers that it changes, which are in text_encoder"
    assert activation.warnings == (f"encoder only has no effect: {why}",)
    (told,) = state_of_session(setup)["loras"]
    assert (told["state"], told["reason"]) == ("none", why)


def test_a_lora_whose_region_and_schedule_limit_nothing_is_said_to_act_in_full(setup: Setup) -> None:
    setup.save("encoder only")
    cases = {
        "mask=left": "region",
        "1@0,0@1": "schedule",
        "mask=left:stop=1": "region and schedule",
        "module=unet:mask=left": "",  # has no effect at all, which is said
    }
    for fields, limits in cases.items():
        activation = setup.session.begin_batch(
            [[parse_arguments(f"encoder only:1:{fields}"), parse_arguments("zorp:1:mask=left")]]
        )
        why = f"no {limits} limits it: all its layers are in text_encoder, which runs before the steps"
        told, other = state_of_session(setup)["loras"]
        assert other["warning"] == ""
        if limits:
            assert activation.warnings == (f"encoder only: {why}",)
            assert (told["state"], told["warning"]) == ("applied", why)
            assert activation.lines()[0].endswith(f"; {why}")
        else:
            assert told["state"] == "none"
            assert told["warning"] == ""


def test_a_lora_whose_unet_half_has_no_effect_says_so_though_its_other_half_has(setup: Setup) -> None:
    activation = setup.session.begin_batch([[parse_arguments("zorp:1:start=10:stop=5")]])
    why = "no effect on the unet: it stops at step 5 and starts at step 10 only"
    assert activation.warnings == (f"zorp has {why}",)
    (told,) = state_of_session(setup)["loras"]
    assert (told["state"], told["reason"]) == ("partly", f"it has {why}")


def test_a_lora_for_a_pass_that_is_not_made_is_said_to_have_had_no_effect(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    session = setup.session
    tags = [
        parse_arguments(written) for written in ("zorp:1:pass=hires,refiner", "neon:1:pass=base", "night:0:pass=hires")
    ]
    why = "zorp has had no effect: it is for pass=hires,refiner, and no such pass was made"
    with caplog.at_level(logging.WARNING):
        assert session.begin_batch([tags]).warnings == (), "the pass may come"
        assert why not in caplog.text
        assert session.warnings() == (why,)
        told = state_of_session(setup)
        assert [(one["name"], one["state"]) for one in told["loras"]] == [
            ("zorp", "waiting"),
            ("neon", "applied"),
            ("night", "none"),
        ]
        assert told["loras"][0]["reason"] in why
        assert told["notes"] == []
        session.end()
    assert why in caplog.text
    session.begin_batch([tags])
    session.follow_model("hires")
    assert (session.warnings(), state_of_session(setup)["notes"]) == ((), []), "of this picture each had its pass"
    session.begin_batch([tags], at="base")
    session.begin_batch([tags], at="hires")
    assert session.warnings() == ()
    session.begin_batch([tags[1:]], always=tags[:1])
    assert session.warnings() == (why,), "another picture, with passes of its own"


def test_a_lora_for_an_image_that_the_batch_does_not_have_is_said_to_have_no_effect(setup: Setup) -> None:
    setup.save("one")
    tags = [parse_arguments(written) for written in ("one:1:rows=9", "zorp:1:rows=2", "zorp:1:rows=3,9")]
    why = "one has no effect: it is for rows=9, the batch has 4 images"
    activation = setup.session.begin_batch([tags], Settings(skip_bad=False), seeds=range(4))
    assert activation.skipped == (why,)
    assert [active.images for active in activation.active] == [(1, 2)]
    assert [(told["name"], told["reason"]) for told in state_of_session(setup)["loras"] if told["reason"]] == [
        ("one", why.removeprefix("one has no effect: "))
    ]
    assert setup.session.begin_batch([tags[:1]], always=tags[:1]).skipped == (why.replace("4 images", "1 image"),)


@pytest.mark.parametrize(("written", "said"), [("zorp:1:high", True), ("zorp:1:low", True), ("zorp:1", False)])
def test_a_noise_that_has_no_denoiser_of_its_own_is_told(setup: Setup, written: str, said: bool) -> None:
    activation = setup.session.begin_batch([[parse_arguments(written)]])
    why = f"zorp: {written[7:]} is for models with two denoisers, such as Wan 2.2; it acts in all noise"
    assert activation.notes == ((why,) if said else ())
    assert activation.active[0].report.hit
    assert state_of_session(setup)["notes"] == list(activation.notes)


@pytest.mark.parametrize(
    ("written", "te", "unet", "limited"),
    [
        ("1e9", 10, 10, True),
        ("1:-50", 1, -10, True),
        ("100@0,0@1", 10, 10, True),
        ("1:hr=11", 1, 1, True),
        ("-10", -10, -10, False),
    ],
)
def test_strengths_are_limited_with_a_note_unless_the_setting_is_off(
    setup: Setup, written: str, te: float, unet: float, limited: bool
) -> None:
    tag = parse_arguments(f"zorp:{written}")

    def strengths() -> list[float]:
        assert setup.session.model.engine is not None
        (entry,) = setup.session.model.engine.stack
        return [entry.strength("text_encoder"), entry.strength("unet")]

    notes = setup.session.begin_batch([[tag]]).notes
    assert [note.startswith("zorp: a strength of ") and " is taken as 10; " in note for note in notes] == [
        True
    ] * limited
    assert strengths() == [te, unet]
    assert setup.session.begin_batch([[tag]], Settings(limited=False)).notes == ()
    assert (strengths() == [te, unet]) == (written in ("1:hr=11", "-10"))


def test_a_lora_that_is_too_strong_has_failed(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    """The model computes numbers that no picture can have, which the web UI shows as a black one."""
    torch.compiler.reset()  # outputs are looked at only where nothing was compiled
    unet = setup.host.components()["unet"]
    setup.session.begin_batch([[Tag("stripes", 0.2, 0.2), Tag("zorp", 1e30, 1e30)]], Settings(limited=False))
    size = (1, unet.config.in_channels, 8, 8)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        unet(torch.zeros(size), 1, torch.zeros(1, 77, unet.config.cross_attention_dim))
        why = "the output of unet is not finite from call 1 on, and this LoRA changes it most, at a strength of 1e+30"
        assert f"zorp: {why}" in setup.session.warnings()
        setup.session.end()
    assert any(why in record.message for record in caplog.records)
    told = {one["name"]: one for one in state_of_session(setup)["loras"]}
    assert (told["zorp"]["state"], told["stripes"]["state"]) == ("failed", "applied")
    assert told["zorp"]["reason"].startswith(why)


def test_layers_that_are_never_called_are_told_when_the_generation_ends(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.save("one")
    (path,) = (name for name, _ in setup.encoder.named_modules() if name.endswith(PROJECTION))
    layer = setup.encoder.get_submodule(path)
    setup.session.begin_batch([[Tag("zorp", 0.8, 0.8)]])
    setup.output()
    assert setup.session.last.warnings == ()
    setup.session.begin_batch([[Tag("zorp", 0.8, 0.8), Tag("one", 1.0, 1.0)]])
    layer.forward = lambda x: torch.nn.functional.linear(x, layer.weight, layer.bias)  # as other code may
    setup.output()
    with caplog.at_level(logging.WARNING):
        setup.session.end()
    assert any(f"text_encoder.{path}" in record.message for record in caplog.records)
    (sentence,) = (note for note in state_of_session(setup)["notes"] if "never called" in note)
    assert "1 of " in sentence
