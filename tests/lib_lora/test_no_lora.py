"""Files that are no LoRA for an image model are named, with what reads them; LoRA are never taken for one."""

from __future__ import annotations

import json
import time

import pytest
import torch
from torch import nn

from lib_lora import FileError, PickleError, inspect_file, load_network
from lib_lora.files.formats.strangers.base import Stranger, stranger_of, strangers
from lib_lora.plugins import register, unregister
from tests.fakes.files import hollow, pair, save

_LLM = "base_model.model.model.layers.0.self_attn.q_proj"
SAMPLES: dict[str, dict[str, tuple[int, ...]]] = {
    "control_lora": {
        "lora_controlnet": (0,),
        "input_blocks.1.0.emb_layers.1.up": (32, 2),
        "input_blocks.1.0.emb_layers.1.down": (2, 128),
        "zero_convs.0.0.weight": (32, 32, 1, 1),
        "input_hint_block.0.weight": (16, 3, 3, 3),
    },
    "lllite": {
        "lllite_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q.down.0.weight": (64, 640),
        "lllite_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q.conditioning1.0.weight": (16, 3, 4, 4),
    },
    "controlnet": {
        "control_model.input_hint_block.0.weight": (16, 3, 3, 3),
        "control_model.zero_convs.0.0.weight": (1,),
    },
    "fun_control": {"control_all_x_embedder.2-1.weight": (96, 132), "control_layers.0.before_proj.weight": (96, 96)},
    "vace_module": {"vace_patch_embedding.weight": (64, 96, 1, 2, 2), "vace_blocks.0.before_proj.weight": (64, 64)},
    "t2i_adapter": {"adapter.body.0.resnets.0.block1.weight": (32, 32, 3, 3), "adapter.conv_in.weight": (32, 64, 3, 3)},
    "motion_lora": {
        "down_blocks.0.motion_modules.0.temporal_transformer.transformer_blocks.0.attention_blocks.0.processor."
        f"to_q_lora.{side}.weight": shape
        for side, shape in {"down": (4, 32), "up": (32, 4)}.items()
    },
    "motion_module": {
        "down_blocks.0.motion_modules.0.temporal_transformer.norm.weight": (32,),
        "down_blocks.0.motion_modules.0.temporal_transformer.proj_in.weight": (32, 32),
    },
    "ip_adapter": {"image_proj.proj.weight": (307, 102), "ip_adapter.1.to_k_ip.weight": (32, 76)},
    "ip_adapter_face_id": {"image_proj.proj.0.weight": (102, 51), "ip_adapter.0.to_q_lora.down.weight": (12, 32)},
    "instant_id": {"image_proj.proj_in.weight": (128, 512), "ip_adapter.1.to_k_ip.weight": (64, 204)},
    "photo_maker": {
        "id_encoder.vision_model.embeddings.class_embedding": (10,),
        "id_encoder.fuse_module.mlp1.fc1.weight": (2, 4),
    },
    "pulid": {"pulid_ca.0.norm1.weight": (30,), "pulid_encoder.latents": (1, 32, 10)},
    "redux": {"redux_up.weight": (122, 11), "redux_down.weight": (40, 122)},
    "fooocus_inpaint": {"head": (320, 5, 3, 3)},
    "layer_diffuse": {"diffusion_model.input_blocks.4.1.transformer_blocks.0.attn1.to_q.weight::lora::0": (64, 2)},
    "easy_control": {f"double_blocks.0.processor.q_loras.0.{side}.weight": (30, 30) for side in ("down", "up")},
    "x_lora": {"base_model.internal_xlora_classifier.layers.0.weight": (3, 4)},
    "textual_inversion": {"clip_l": (4, 768), "clip_g": (4, 1280)},
    "token_embedding": {"<my-cat>": (768,)},
    "bundled_embeddings": {"bundle_emb.cat.clip_l": (4, 768)},
    "hypernetwork": {"768.0.linear.0.weight": (15, 7), "768.0.linear.0.bias": (15,)},
    "ic_light": {"conv_in.weight": (320, 8, 3, 3), "down_blocks.0.resnets.0.conv1.weight": (32, 32, 3, 3)},
    "checkpoint": {
        "model.diffusion_model.input_blocks.0.0.weight": (32, 4, 3, 3),
        "first_stage_model.quant_conv.bias": (8,),
    },
    "quantized_checkpoint": {
        "double_blocks.0.img_attn.qkv.weight": (96, 16),
        "double_blocks.0.img_attn.qkv.weight.absmax": (9,),
    },
    "nunchaku_checkpoint": {
        "transformer_blocks.0.qkv_proj.qweight": (96, 16),
        "transformer_blocks.0.qkv_proj.lora_down": (3, 16),
    },
    "vae": {"encoder.conv_in.weight": (12, 3, 3, 3), "decoder.up_blocks.0.resnets.0.conv1.weight": (5, 5, 3, 3)},
    "clip_text_encoder": {"text_model.encoder.layers.0.self_attn.q_proj.weight": (76, 76)},
    "t5_text_encoder": {"shared.weight": (3, 40), "encoder.block.0.layer.0.SelfAttention.q.weight": (40, 40)},
    "language_model": {"model.layers.0.self_attn.q_proj.weight": (25, 25), "model.embed_tokens.weight": (15, 25)},
    "clip_vision": {"vision_model.encoder.layers.0.self_attn.q_proj.weight": (10, 10)},
    "upscaler": {"conv_first.weight": (64, 3, 3, 3), "body.0.rdb1.conv1.weight": (32, 64, 3, 3)},
    "training_state": {"shadow_params.0": (4, 3), "global_step": ()},
    "sam_lora": {"w_a_000": (4, 76), "w_b_000": (76, 4)},
    "language_lora": {f"{_LLM}.lora_{side}.weight": (4, 4) for side in "AB"},
}
"""Kind -> a few keys of such a file."""
HEADS = {
    "web_page": b"<!DOCTYPE html><html>",
    "message": b'{"error": "not found"}',
    "lfs_pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "gguf": b"GGUF\3\0\0\0" + bytes(64),
    "picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "archive": b"Rar!\x1a\7\1\0abcd",
    "zeros": bytes(4096),
}
KINDS = {one.name: one for one in strangers()}


def test_every_kind_is_named_with_what_reads_it(tmp_path):
    assert {*SAMPLES, *HEADS} == set(KINDS), "add a few keys of each kind to SAMPLES"
    model, wrong = {"unet": nn.Sequential(nn.Linear(4, 4))}, []
    for name, shapes in SAMPLES.items():
        path = save(tmp_path / f"{name}.safetensors", {key: torch.zeros(shape) for key, shape in shapes.items()})
        with pytest.raises(FileError) as caught:
            load_network(path, model).check_fit()
        if str(KINDS[name].title) not in str(caught.value) or KINDS[name].remedy not in str(caught.value):
            wrong.append((name, str(caught.value)[:200]))
    for name, content in HEADS.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        with pytest.raises(FileError) as caught:
            inspect_file(path)
        if f"{path.name}: {KINDS[name]}" != str(caught.value):
            wrong.append((name, str(caught.value)))
    assert wrong == []
    assert len(KINDS) >= 40


def test_siblings_of_the_kinds_are_named_too():
    """Other programs' spelling of the same."""
    for kind, keys in {
        "controlnet": [
            "input_hint_block.0.weight",
            "controlnet_down_blocks.0.weight",
            "controlnet_single_blocks.0.weight",
        ],
        "ip_adapter": [
            "double_blocks.0.processor.ip_adapter_double_stream_k_proj.weight",
            "ip_adapter.0.to_k_ip.weight",
        ],
        "pulid": ["id_adapter_attn_layers.1.id_to_k.weight", "id_adapter.latents"],
        "vae": ["decoder.middle.0.residual.0.gamma", "encoder.downsamples.0.residual.0.gamma", "quant_conv.weight"],
        "sam_lora": ["image_encoder.blocks.0.attn.qkv.linear_a_q.weight"],
        "upscaler": ["model.1.sub.0.RDB1.conv1.0.weight", "RRDB_trunk.0.RDB1.conv1.weight"],
        "language_lora": [
            "base_model.model.model.layers.0.mlp.gate_proj.lora_A.default.weight",
            "base_model.model.gpt_neox.layers.0.attention.query_key_value.lora_A.weight",
            "base_model.model.model.decoder.layers.0.encoder_attn.q_proj.lora_A.weight",
            "base_model.model.visual.blocks.0.attn.qkv.lora_A.weight",
            "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight",
        ],
        "training_state": ["state.0.exp_avg"],
        "textual_inversion": ["string_to_param", "emb_params"],
        "checkpoint": ["double_blocks.0.img_attn.qkv.weight", "model_ema.decay"],
        "clip_text_encoder": ["cond_stage_model.transformer.text_model.embeddings.position_ids"],
    }.items():
        for key in keys:
            found = stranger_of({key: None})
            assert found is not None, key
            assert found.name == kind, key


def test_a_file_of_a_kind_without_a_name_is_not_called_a_kind_that_it_resembles():
    """Parts of GLIGEN, SparseCtrl, a prompt of PEFT's, and a classifier."""
    blocks = "down_blocks.0.{}.weight"
    for shapes in (
        {"position_net.linears.0.weight": (512, 1792), blocks.format("attentions.0.fuser.attn.to_q"): (320, 320)},
        {"module.controlnet_cond_embedding.weight": (4,), blocks.format("motion_modules.0.norm"): (32,)},
        {"prompt_embeddings": (20, 768)},
        {"blocks.0.attn.qkv.weight": (2304, 768), "head.weight": (1000, 768)},
    ):
        found = stranger_of(shapes)
        assert found is None or found.name == "controlnet", (shapes, found)


def test_no_lora_is_taken_for_another_file(real_keys):
    """Real lists of keys: the LoRA match no kind, the models do."""
    found = {}
    for path in real_keys.glob("*.json"):
        if not path.name.endswith(".meta.json"):
            shapes = {key: shape and tuple(shape) for key, shape in json.loads(path.read_text()).items()}
            found[path.stem] = stranger_of(shapes)
    assert {name: one for name, one in found.items() if "_base_" not in name and one is not None} == {}
    assert [name for name, one in found.items() if "_base_" in name and one is None] == []


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_a_pickle_is_named_by_the_names_in_it_which_is_not_loaded(tmp_path, options):
    for kind, (name, content) in {
        "ip_adapter": ("a.bin", {"image_proj": {"proj.weight": torch.zeros(2)}, "ip_adapter": {"1.to_k_ip.weight": 1}}),
        "fooocus_inpaint": ("inpaint_v26.fooocus.patch", {"x": torch.zeros(2)}),
        "hypernetwork": ("a.pt", {768: [{"linear.0.weight": torch.zeros(2)}], "activation_func": "relu"}),
        "motion_module": ("mm.ckpt", {"mid_block.motion_modules.0.temporal_transformer.norm.weight": torch.zeros(2)}),
        "checkpoint": ("b.ckpt", {"state_dict": {"model.diffusion_model.input_blocks.0.0.weight": torch.zeros(2)}}),
    }.items():
        torch.save(content, tmp_path / name, **options)
        with pytest.raises(PickleError) as caught:
            inspect_file(tmp_path / name)
        assert str(KINDS[kind]) in str(caught.value), caught.value
    torch.save(pair("lora_unet_conv_in", (4, 4), 2), tmp_path / "lora.pt", **options)
    with pytest.raises(PickleError, match="convert it once"):
        inspect_file(tmp_path / "lora.pt")


def test_a_checkpoint_is_named_with_its_family(tmp_path):
    for title, shapes in {
        "FLUX.1": {
            "double_blocks.9.img_attn.qkv.weight": (9216, 3072),
            "double_blocks.9.img_mod.lin.weight": (18432, 3072),
            "txt_in.weight": (3072, 4096),
        },
        "Stable Diffusion XL": {
            "model.diffusion_model.input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight": (640, 2048)
        },
        "Wan 2": {"blocks.0.self_attn.q.weight": (5120, 5120), "blocks.0.ffn.0.weight": (13824, 5120)},
    }.items():
        path = hollow(tmp_path / "a.safetensors", {key: (shape, "F16") for key, shape in shapes.items()})
        with pytest.raises(FileError, match=f"a whole checkpoint of {title}: "):
            inspect_file(path)


def test_a_package_adds_a_kind_and_a_hostile_file_costs_no_time():
    zorp = Stranger("zorp", "a zorp", "eat it", r"^key:zorp\.")
    register(zorp)
    try:
        assert stranger_of({"zorp.weight": (1,)}) is zorp
    finally:
        unregister(zorp)
    hostile = {f"{'lora_unet_' * 40_000}{i}": (1,) for i in range(20)}
    began = time.process_time()
    assert stranger_of(hostile, "down_blocks." * 10_000) is None
    assert time.process_time() - began < 1
    with pytest.raises(ValueError, match="must begin with"):
        Stranger("x", "x", "x", "key")
