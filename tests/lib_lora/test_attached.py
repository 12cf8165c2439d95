"""The engine that a pipeline keeps, and its LoRA by their names."""

from __future__ import annotations

import copy
import gc
import io
import json
import pickle
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from lib_lora import (
    ArgumentError,
    ComponentError,
    Curve,
    Engine,
    Entry,
    FileError,
    LoraError,
    Moment,
    NoMatchError,
    PickleError,
    PipelineEngine,
    Region,
    Stack,
    StackError,
    Strength,
    attach,
    replace_lora_calls,
)
from tests.fakes.files import pair
from tests.fakes.files import save as write
from tests.fakes.models import kohya_lora, tiny_unet, unet_inputs


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.q(x) + self.k(x)


class Pipe:
    """As a pipeline of diffusers has them."""

    def __init__(self, seed: int = 0) -> None:
        torch.default_generator.manual_seed(seed)
        self.unet, self.text_encoder = Attention().requires_grad_(False), Attention().requires_grad_(False)

    @property
    def components(self) -> dict[str, object]:
        return {"unet": self.unet, "text_encoder": self.text_encoder, "tokenizer": None}


X = torch.ones(2, 8)


def lora(path: Path, seed: int) -> Path:
    tensors = pair("lora_unet_q", (8, 8), 2, seed=seed) | pair("lora_te_k", (8, 8), 2, seed=seed + 9)
    return write(path, tensors)


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    return {name: lora(tmp_path / f"{name}.safetensors", seed) for seed, name in enumerate(("style", "face"))}


def change(pipe: Pipe, part: str = "unet") -> Tensor:
    """Return what the LoRA in force change of the output of a component."""
    module = getattr(pipe, part)
    plain = sum(nn.functional.linear(X, layer.weight, layer.bias) for layer in (module.q, module.k))
    return module(X) - plain


def delta(file: Path, part: str = "unet") -> Tensor:
    """Return what a file changes of the output of a component at strength 1."""
    name = {"unet": "lora_unet_q", "text_encoder": "lora_te_k"}[part]
    tensors = load_file(file)
    return X @ (tensors[f"{name}.lora_up.weight"] @ tensors[f"{name}.lora_down.weight"]).T


def same(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def style_it(pipe: Pipe, file: Path) -> None:
    attach(pipe).load(file)


def test_the_pipeline_keeps_its_engine(files):
    pipe = Pipe()
    style_it(pipe, files["style"])
    gc.collect()
    same(change(pipe), delta(files["style"]))  # it does not go when a variable goes
    assert attach(pipe) is attach(pipe)
    assert attach(pipe).names == ("style",)
    unet, engine, held = pipe.unet, weakref.ref(attach(pipe)), weakref.ref(pipe)
    del pipe
    gc.collect()
    assert held() is None
    assert engine() is None
    assert "forward" not in vars(unet.q)
    same(unet(X), nn.functional.linear(X, unet.q.weight, unet.q.bias) + unet.k(X))


def test_a_copy_of_a_pipeline_has_nothing_of_it(pipe, files):
    attach(pipe).load(files["style"])
    twin = copy.deepcopy(pipe)
    same(change(twin), torch.zeros(2, 8))
    assert attach(twin) is not attach(pipe)
    attach(twin).load(files["face"])
    same(change(twin), delta(files["face"]))
    same(change(pipe), delta(files["style"]))
    assert pickle.loads(pickle.dumps(pipe)).unet.q.weight.equal(pipe.unet.q.weight)


def test_lora_have_names(pipe, files):
    engine = attach(pipe)
    report = engine.load(files["style"], name="a", strength=0.5)
    assert report.hit == 2
    engine.load(str(files["face"]), strength={"unet": 0.25})
    assert engine.names == ("a", "face")
    same(change(pipe), 0.5 * delta(files["style"]) + 0.25 * delta(files["face"]))
    same(change(pipe, "text_encoder"), 0.5 * delta(files["style"], "text_encoder"))
    engine.set("a", {"unet": 2.0, "text_encoder": 1.0})
    same(change(pipe), 2 * delta(files["style"]) + 0.25 * delta(files["face"]))
    assert engine.stack.entries[0].name == "a"
    engine.unload("a")
    same(change(pipe), 0.25 * delta(files["face"]))
    assert list(engine.loaded) == ["face"]
    engine.unload("face")
    same(change(pipe), torch.zeros(2, 8))


def test_one_replaces_another_of_its_name(pipe, files):
    engine = attach(pipe)
    engine.load(files["style"], name="a")
    with pytest.raises(StackError, match="'a' is loaded already; give another name, or write replace=True"):
        engine.load(files["face"], name="a")
    same(change(pipe), delta(files["style"]))
    engine.load(files["face"], name="a", replace=True)
    same(change(pipe), delta(files["face"]))
    assert engine.names == ("a",)


def test_some_rest(pipe, files):
    engine = attach(pipe)
    for name, file in files.items():
        engine.load(file, name=name)
    with engine.only("face"):
        same(change(pipe), delta(files["face"]))
        assert set(engine.names) == {"style", "face"}
    with engine.only():
        same(change(pipe), torch.zeros(2, 8))
    same(change(pipe), delta(files["style"]) + delta(files["face"]))
    with pytest.raises(ZeroDivisionError), engine.only("style"):
        _ = 1 / 0
    same(change(pipe), delta(files["style"]) + delta(files["face"]))
    engine.use("face")
    assert repr(engine) == "<PipelineEngine of unet, text_encoder: in force 'face', at rest 'style'>"
    engine.set("style", 3.0)  # it rests
    same(change(pipe), delta(files["face"]))
    engine.use("face", "style")
    same(change(pipe), 3 * delta(files["style"]) + delta(files["face"]))
    engine.use_at({"style": 0.5})
    same(change(pipe), 0.5 * delta(files["style"]))
    engine.unload("face")
    assert engine.names == ("style",)


def test_merging_is_undone_bit_for_bit(pipe, files):
    engine, before = attach(pipe), pipe.unet.q.weight.clone()
    engine.load(files["style"])
    engine.merge()
    assert not pipe.unet.q.weight.equal(before)
    engine.unmerge()
    assert pipe.unet.q.weight.equal(before)
    same(change(pipe), delta(files["style"]))


def test_a_name_that_is_not_there_gets_a_suggestion(pipe, files):
    engine = attach(pipe)
    with pytest.raises(StackError, match=r"no LoRA is called 'a'; write engine.load\('style.safetensors'"):
        engine.set("a", 1.0)
    engine.load(files["style"])
    for call in (lambda: engine.set("stile", 1.0), lambda: engine.unload("Style"), lambda: engine.use("styles")):
        with pytest.raises(StackError, match="did you mean 'style'"):
            call()
    with pytest.raises(StackError, match="no LoRA is called 'x'; there are 'style'"):
        engine.unload("x")


def test_a_failure_changes_nothing(pipe, files, tmp_path):
    engine = attach(pipe)
    engine.load(files["style"])
    other = write(tmp_path / "other.safetensors", pair("lora_unet_nowhere", (9, 9), 2))
    with pytest.raises(NoMatchError):
        engine.load(other)
    with pytest.raises(FileError, match="there is no such file or folder"):
        engine.load(tmp_path / "none.safetensors")
    with pytest.raises(FileError, match="it is a web address, and Remora downloads nothing"):
        engine.load("https://huggingface.co/owner/name/resolve/main/style.safetensors")
    with pytest.raises(ArgumentError, match="a state dict without tensors is no LoRA"):
        engine.load({})
    assert engine.names == ("style",)
    same(change(pipe), delta(files["style"]))


class TestSources:
    def test_tensors(self, pipe, files):
        tensors = load_file(files["style"])
        tensors["lora_unet_q.lora_up.weight"] = tensors["lora_unet_q.lora_up.weight"].t().contiguous().t()
        engine = attach(pipe)
        engine.load(tensors, name="given")
        tensors["lora_unet_q.lora_up.weight"].zero_()
        same(change(pipe), delta(files["style"]))
        assert engine.names == ("given",)
        engine.load({**load_file(files["face"])}, name="scaled", scale=0.5)
        same(change(pipe), delta(files["style"]) + 0.5 * delta(files["face"]))
        own = Path(engine.stack.entries[0].path)
        assert own.exists()
        engine.close()
        del engine
        gc.collect()
        assert not own.exists()

    def test_open_files(self, pipe, files):
        engine = attach(pipe)
        with files["style"].open("rb") as stream:
            engine.load(stream, name="a")
        engine.load(io.BytesIO(save(load_file(files["face"]))), name="b")
        same(change(pipe), delta(files["style"]) + delta(files["face"]))
        with files["style"].open(encoding="latin-1") as stream, pytest.raises(ArgumentError, match="mode 'rb'"):
            engine.load(stream)

    def test_a_folder_of_peft(self, tmp_path):
        from peft import LoraConfig, get_peft_model

        pipe = Pipe()
        plain = pipe.unet(X)
        model = get_peft_model(copy.deepcopy(pipe.unet), LoraConfig(r=2, lora_alpha=6, target_modules=["q"]))
        torch.nn.init.normal_(model.base_model.model.q.lora_B["default"].weight)
        model.save_pretrained(tmp_path / "trained")
        engine = attach(pipe)
        engine.load(tmp_path / "trained")
        assert engine.names == ("trained",)
        same(pipe.unet(X), model(X))
        assert not pipe.unet(X).equal(plain)

    def test_other_folders(self, pipe, tmp_path):
        engine = attach(pipe)
        with pytest.raises(FileError, match=r"no file that ends in \.safetensors"):
            engine.load(tmp_path)
        (tmp_path / "adapter_model.bin").touch()
        with pytest.raises(FileError, match=r"adapter_model.bin is a pickle, which is not loaded; save it with safe_"):
            engine.load(tmp_path)
        lora(tmp_path / "one.safetensors", 1)
        engine.load(tmp_path)
        lora(tmp_path / "two.safetensors", 2)
        with pytest.raises(FileError, match=r"several files; give the path of one \(or weight_name=\): \['one.safe"):
            engine.load(tmp_path)
        engine.load(tmp_path, weight_name="two.safetensors")
        with pytest.raises(FileError, match=r"has no file 'three'; it has one.safetensors, two.safetensors"):
            engine.load(tmp_path, weight_name="three")
        assert engine.names == ("one", "two")
        with pytest.raises(PickleError):
            engine.load(tmp_path / "adapter_model.bin")

    def test_the_cache_of_the_hub(self, pipe, tmp_path, monkeypatch):
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        engine = attach(pipe)
        with pytest.raises(FileError, match=r"owner/pixel is no file or folder here.*run `hf download owner/pixel`"):
            engine.load("owner/pixel")
        repository = tmp_path / "models--owner--pixel"
        snapshot = repository / "snapshots" / "0123abc"
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0123abc")
        file = lora(snapshot / "pytorch_lora_weights.safetensors", 4)
        for i, source in enumerate(("owner/pixel", snapshot, repository, file)):
            engine.load(source, **({"name": str(i)} if i else {}))
        assert engine.names == ("pixel", "1", "2", "3")
        same(change(pipe), 4 * delta(file))


@pytest.fixture(scope="module")
def unet(tmp_path_factory):
    unet = tiny_unet(0)
    return unet, kohya_lora(tmp_path_factory.mktemp("loras") / "a.safetensors", {"unet": unet}, seed=3, conv=True)


class TestWishes:
    @pytest.mark.parametrize(
        ("wish", "weights"),
        [
            ({"down": 0.5}, {"down_blocks": 0.5}),
            ({"mid": 0.25}, {"mid_block": 0.25}),
            ({"mid": [0.25], "up": 0}, {"mid_block": 0.25, "up_blocks": 0}),
            ({"up": {"block_1": 0.5}}, {"up_blocks.1": 0.5}),
            ({"up": {"1": 0.5}}, {"up_blocks.1": 0.5}),
            (
                {"up": {"block_1": [0.4, 0.6]}, "down": {"block_0": [0.1]}},
                {
                    **{
                        f"up_blocks.1.{kind}.{i}": w
                        for kind in ("attentions", "resnets")
                        for i, w in ((0, 0.4), (1, 0.6))
                    },
                    **{f"down_blocks.0.{kind}.0": 0.1 for kind in ("attentions", "resnets")},
                },
            ),
            ({"attn2": 0.5, "down_blocks": 0.25}, {"attn2": 0.5, "down_blocks": 0.25}),
        ],
    )
    def test_blocks(self, unet, wish, weights):
        """Each layer has the weight of the first part of its name."""
        model, file = unet
        with PipelineEngine({"unet": model}) as engine, torch.no_grad():
            report = engine.load(file, strength={"unet": wish})
            got = model(**unet_inputs(1))[0]
            assert report.hit == report.layers
        reference, tensors = copy.deepcopy(model), load_file(file)
        for path, layer in reference.named_modules():
            name = f"lora_unet_{path.replace('.', '_')}"
            if f"{name}.alpha" in tensors:
                up, down = tensors[f"{name}.lora_up.weight"], tensors[f"{name}.lora_down.weight"]
                weight = next((w for part, w in weights.items() if f"{part}." in f"{path}."), 1.0)
                change = (up.flatten(1) @ down.flatten(1)) * (tensors[f"{name}.alpha"] / down.shape[0]) * weight
                layer.weight.data += change.view_as(layer.weight)
        with torch.no_grad():
            torch.testing.assert_close(got, reference(**unet_inputs(1))[0], rtol=0, atol=1e-4)

    def test_schedules_and_regions(self, pipe, files):
        engine = attach(pipe)
        engine.set_clock(None)
        engine.load(files["style"], name="a", strength=Curve([(0, 1.0), (10, 0.0)]))
        engine.set_moment(Moment(5, 11))
        same(change(pipe), 0.5 * delta(files["style"]))
        engine.set("a", {"unet": Curve([(0, 0.0), (10, 1.0)]), "text_encoder": 0.5})
        engine.set_moment(Moment(10, 11))
        same(change(pipe), delta(files["style"]))
        same(change(pipe, "text_encoder"), 0.5 * delta(files["style"], "text_encoder"))
        engine.set("a", Region.rectangle(0, 0, 0.5, 1))
        assert engine.stack.entries[0].multiplier.region is not None

    @pytest.mark.parametrize(
        ("wish", "text"),
        [
            ({"unet": {"down": {"block_7": 1.0}}}, "no 'block_7' in down; there are block_0, block_1"),
            ({"unet": {"up": {"block_1": [1, 2, 3]}}}, "up.block_1 takes 2 numbers, or one, not 3"),
            ({"unet": {"sideways": 1.0}}, "unet has no block 'sideways'; its layers are in .*down_blocks"),
            ({"unet": Strength(0.5)}, "of unet must be a number, not a Strength; write one Strength of all components"),
            ({"unet": {"down": "much"}}, "strength of down_blocks must be a finite number, not 'much'"),
            ({"down": 0.5}, r"down is a block; write it in its component, as {'unet': {'down': 0.5}}"),
            ({"text_encoder": {"layers.0": 1.0}}, "'text_encoder' takes one number"),
            ({"unett": 0.5}, "no component 'unett'"),
            ("strong", "a strength must be a number, a dict of components, a Curve"),
            (None, "a strength must be"),
            ([0.5], "a strength must be"),
            (float("nan"), "a strength must be"),
            ({"unet": float("nan")}, "a multiplier of unet must be"),
        ],
    )
    def test_what_is_written_wrong(self, unet, wish, text):
        model, file = unet
        encoder = Attention()
        with PipelineEngine({"unet": model, "text_encoder": encoder}) as engine:
            engine.load(file, name="a")
            before = engine.stack
            with pytest.raises(LoraError, match=text):
                engine.set("a", wish)
            assert engine.stack == before


def test_attach_says_what_it_takes(pipe, files):
    for wrong in (None, 5, "a pipeline", pipe.unet, {"unet": pipe.unet}, [], Pipe):
        with pytest.raises(ComponentError, match="pipeline"):
            attach(wrong)
    engine = attach(pipe, cache_size=3)
    with pytest.raises(ArgumentError, match="has an engine already, so cache_size would have no effect"):
        attach(pipe, cache_size=4)
    engine.load(files["style"])
    engine.close()
    assert engine.names == ()
    same(change(pipe), torch.zeros(2, 8))
    again = attach(pipe, cache_size=4)
    assert again is not engine
    again.load(files["style"])
    same(change(pipe), delta(files["style"]))


def test_a_stack_of_names_is_plain(files):
    entry = Entry(files["style"], 0.5, name="mine")
    assert entry.name == "mine"
    assert Entry(files["style"]).name == "style"
    assert json.dumps(repr(Stack([entry])))
    model = Attention()
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([entry]))
        with pytest.raises(
            ArgumentError, match="index must be the position of an entry in the stack, as 0, not 'mine'"
        ):
            engine.set_multiplier("mine", 0.6)
    with pytest.raises(ArgumentError, match="name of an entry must be a text"):
        Entry(files["style"], name=5)


def test_the_calls_of_diffusers_are_of_this_pipeline_alone(pipe, files):
    other = Pipe()
    assert replace_lora_calls(pipe) is pipe
    assert replace_lora_calls(pipe) is pipe
    assert isinstance(pipe, Pipe)
    assert type(pipe).__name__ == "Pipe"
    assert not hasattr(other, "load_lora_weights")
    pipe.load_lora_weights(files["style"])
    pipe.load_lora_weights(files["face"])
    assert pipe.get_active_adapters() == ["default_1"]
    assert pipe.get_list_adapters() == {name: ["default_1", "default_0"] for name in ("text_encoder", "unet")}
    pipe.set_adapters(["default_0", "default_1"], [{"unet": 0.5}, None])
    same(change(pipe), 0.5 * delta(files["style"]) + delta(files["face"]))
    same(change(pipe, "text_encoder"), delta(files["style"], "text_encoder") + delta(files["face"], "text_encoder"))
    before = pipe.unet.q.weight.clone()
    pipe.fuse_lora(components=["unet"], lora_scale=2.0)
    assert pipe.num_fused_loras == 2
    pipe.unload_lora_weights()
    assert pipe.get_active_adapters() == []
    merged = nn.functional.linear(X, pipe.unet.q.weight - before)
    same(merged, delta(files["style"]) + 2 * delta(files["face"]))
    pipe.unfuse_lora()
    assert pipe.unet.q.weight.equal(before)
    same(change(pipe), torch.zeros(2, 8))
    for wrong in (
        lambda: pipe.set_adapters("style"),
        lambda: pipe.set_adapters(["a", "b"], [1.0]),
        lambda: pipe.fuse_lora(components=["vae"]),
        lambda: pipe.load_lora_weights(files["style"], unheard_of=True),
        lambda: pipe.load_lora_weights(files["style"], hotswap=True, adapter_name="x"),
        lambda: pipe.delete_adapters("x"),
    ):
        with pytest.raises(LoraError):
            wrong()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_script_modules_are_left_alone(files):
    pipe = Pipe()
    pipe.unet.scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 8)))
    pipe.text_encoder = torch.jit.script(nn.Sequential(nn.Linear(8, 8)))
    before = pipe.text_encoder(X), pipe.unet.scripted(X)
    engine = attach(pipe)
    engine.load(files["style"], strength={"unet": 1.0})
    same(change(pipe), delta(files["style"]))
    assert list(engine.components) == ["unet"]
    engine.set("style", 0.5)
    engine.merge()
    assert engine.report.silence == ""
    assert pipe.text_encoder(X).equal(before[0])
    assert pipe.unet.scripted(X).equal(before[1])
    with pytest.raises(ComponentError, match="'unet': RecursiveScriptModule"):
        Engine({"unet": torch.jit.script(nn.Linear(8, 8))})


def test_a_lora_is_trained_on_top_of_an_active_one(pipe, files):
    """Gradients of the base weight and of other parameters are the ones of the merged model."""
    attach(pipe).load(files["style"], strength=0.5)
    twin = copy.deepcopy(pipe.unet).requires_grad_(True)
    tensors = load_file(files["style"])
    change = tensors["lora_unet_q.lora_up.weight"] @ tensors["lora_unet_q.lora_down.weight"]
    twin.q.weight.data += 0.5 * change
    pipe.unet.requires_grad_(True)
    for model in (pipe.unet, twin):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(X * 0.1).square().sum().backward()
            optimizer.step()
    same(pipe.unet(X), twin(X))
    same(pipe.unet.q.weight + 0.5 * change, twin.q.weight)
