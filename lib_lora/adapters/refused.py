"""Kinds that no adapter of a layer can be: their keys are known, and refused with the reason.

Source: huggingface/peft tuners/*/layer.py.
"""

from .base import Params, Refused, Shapes


def _refused(name: str, reason: str, *params: str) -> type[Refused]:
    values = {"name": name, "reason": reason, "params": Params(frozenset(), frozenset(params)), "__module__": __name__}
    return type(name, (Refused,), values)


ADAMSS = _refused(
    "adamss",
    "of AdaMSS, which finds the rows that each part changes by clustering the base weight anew",
    "adamss_newB",
    *(f"adamss_{side}.{i}" for side in "AB" for i in range(32)),
)
ADAPTION_PROMPT = _refused(
    "adaption_prompt",
    "of an adaption prompt, which adds tokens to the attention of a text model",
    *("adaption_prompt", "adaption_gate"),
)
FROD = _refused(
    "frod",
    "of FRoD, which computes another weight from a basis of the base weight; a basis as large as the largest layer "
    "is shared by layers of like names, which the file does not contain",
    *("frod_lambda_l", "frod_lambda_s_values"),
)
LILY = _refused(
    "lily",
    "of LILY, which mixes its pairs by the tokens of each call: that is no change of a weight",
    *("lily_A.weight", "lily_B.weight", "lily_router.weight"),
)
OSF = _refused(
    "osf",
    "of OSF, which takes the place of half the singular vectors of each base weight: save the merged model",
    *(f"osf_svd_params.{part}_low" for part in "USV"),
)
POLY = _refused(
    "poly",
    "of Poly, which mixes its pairs by the number of a task, which no web UI has",
    *("poly_lora_A", "poly_lora_B", "poly_router.module_logits"),
)
PSOFT = _refused(
    "psoft",
    "of PSOFT, which turns the greatest singular vectors of the base weight, whose signs each machine chooses "
    "for itself: save the merged model",
    *("psoft_R.weight", "psoft_R.vector_a", "psoft_R.vector_b"),
)
TINYLORA = _refused(
    "tinylora",
    "of TinyLoRA, whose vectors are numbered in the order of the layers of the model that was trained, which the "
    "file does not tell: convert it to a LoRA with PEFT",
    *("tinylora_A", "tinylora_B", "tinylora_P"),
)


class LoRAXSAlone(Refused):
    name = "loraxs_alone"
    params = Params(frozenset({"lora_latent_mapping.weight"}))
    reason = (
        "of a LoRA-XS without lora_A and lora_B, singular vectors of the base weight whose signs each machine chooses "
        "for itself: save them, too"
    )

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        return shapes.keys() == cls.params.required
