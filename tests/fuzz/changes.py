"""Small changes of inputs, which know how each kind of input is built."""

from __future__ import annotations

import base64
import binascii
import copy
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

_TOKENS = (
    *(
        "<lora:",
        "<lyco:",
        ">",
        ":",
        "=",
        ",",
        "@",
        "~",
        ";",
        "-",
        "+",
        "!",
        "#",
        "|",
        "\n",
        "\r\n",
        "\t",
        " ",
        '"',
        "\\",
    ),
    *(
        "te=",
        "unet=",
        "dyn=",
        "hr=",
        "in=",
        "mid=",
        "module=",
        "lbw=",
        "lbwe=",
        "x=",
        "start=",
        "stop=",
        "step=",
        "by=",
    ),
    *("sigma=", "curve=cosine", "pass=base,hires", "half=pos", "rows=1,3", "mask=left", "feather=0.1", "part=1"),
    "outside=0",
    *("0", "1", "-1", ".5", "1e308", "1e309", "1e-320", "0@0,1@1", "99999999999999999999", "0" * 400, "nan", "inf"),
    *("R", "U", "X", "X+0.2", "OUTALL", "ATTNDEEPON", "NOT", "high", "low", "left", "0,0,0.5,1", "BREAK", "AND"),
    *("Negative prompt: ", "Steps: 1, ", "Lora hashes: ", "Remora stack: ", "# Remora preset 1: ", "null", "{}", "[]"),
    *("\x00", "\u0131", "\u00df", "\u0130", "\u2028", "\ufeff", "\U0001f98a", "\u0660", "\u00b2", "\u202e", "e\u0301"),
)
_NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 0.5, 2**31, 2**32, 2**53 + 1, 2**63, 10**19, 10**400, -(10**30), 1e308, 5e-324, 1e16, True, False),
    *(float("nan"), float("inf")),
)
_TEXTS = ("", " ", "x", "a" * 300, "\ud800", "\x00", "null", "<b>", "1e5", "../../x", "__metadata__", "NaN", "\u0130")
_RUN = 12_000  # characters: a second for what grows with their square
_DTYPES = ("F32", "F16", "BF16", "F64", "I8", "I64", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F4", "f32", "C64", "U16", "")
_MOST = 1 << 16  # bytes of an input
_SHORT = 1500  # bytes of most texts, as they are tried quickly
_MOST_HOLLOW = 1 << 30  # bytes that a tensor of a file without its body stands for


def changed_bytes(data: bytes, random: Random) -> bytes:
    """Change some bytes, whatever they mean."""
    found = bytearray(data[:_MOST])
    for _ in range(random.choice((1, 1, 2, 4))):
        at, length = random.randrange(len(found) + 1), random.choice((1, 1, 2, 4, 8, 64))
        match random.randrange(5):
            case 0:
                found[at : at + length] = random.randbytes(length)
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = random.randbytes(length)
            case 3:
                other = random.randrange(len(found) + 1)
                found[at:at] = found[other : other + length * random.choice((1, 1, 16))]
            case _ if found and at < len(found):
                found[at] ^= 1 << random.randrange(8)
    return bytes(found[:_MOST])


def changed_text(data: bytes, random: Random) -> bytes:
    """Change a text by its tokens, and now and then by its bytes."""
    if random.random() < 0.1:
        return changed_bytes(data, random)
    if random.random() < 0.1:
        return with_run(data, random)
    text = data.decode("utf-8", "surrogateescape")
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        places = [at for at, one in enumerate(text) if one in "<>:,=@\n+"] if random.random() < 0.5 else []
        at = random.choice(places) if places else random.randrange(len(text) + 1)
        end = min(len(text), at + random.choice((0, 0, 1, 1, 3, 10)))
        match random.randrange(4):
            case 0:
                text = text[:at] + text[end:]
            case 1:  # a part of it again
                other = random.randrange(len(text) + 1)
                text = (
                    text[:at] + text[other : other + random.choice((1, 5, 40))] * random.choice((1, 1, 20)) + text[end:]
                )
            case _:
                text = text[:at] + random.choice(_TOKENS) * random.choice((1, 1, 1, 1, 30)) + text[end:]
    most = _MOST if random.random() < 0.03 else _SHORT
    return text.encode("utf-8", "surrogateescape" if _is_escaped(text) else "surrogatepass")[:most]


def with_run(data: bytes, random: Random) -> bytes:
    """Put a run of one character, or of one token, into any place of a text."""
    text = data.decode("utf-8", "surrogateescape")
    at = random.randrange(len(text) + 1)
    unit = random.choice((*' \t\n0aA_-.:,<([!\\"', random.choice(text or " "), random.choice(_TOKENS)))
    text = text[:at] + unit * (_RUN // len(unit)) + text[at:]
    return text.encode("utf-8", "surrogateescape" if _is_escaped(text) else "surrogatepass")[:_MOST]


def _is_escaped(text: str) -> bool:
    return not any("\ud800" <= one <= "\udc7f" or "\udd00" <= one <= "\udfff" for one in text)


def changed_json(data: bytes, random: Random) -> bytes:
    """Change some values of JSON, and now and then its text."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return changed_text(data, random)
    if random.random() < 0.15:
        return changed_text(data, random)
    return json.dumps(changed_value(value, random)).encode()[:_MOST]


def changed_value(value: Any, random: Random) -> Any:
    """Return JSON with other values in some places."""
    whole = [copy.deepcopy(value)]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(whole))
        owner, key = random.choice(places)
        _change_at(owner, key, random, places)
    return whole[0]


def _places(owner: Any) -> Iterator[tuple[Any, Any]]:
    """Each value with what holds it."""
    waiting = [owner]
    while waiting:
        one = waiting.pop()
        for key, inner in list(one.items() if isinstance(one, dict) else enumerate(one)):
            yield one, key
            if isinstance(inner, dict | list):
                waiting.append(inner)


def _change_at(owner: Any, key: Any, random: Random, places: Sequence[tuple[Any, Any]]) -> None:
    there = key < len(owner) if isinstance(owner, list) else key in owner
    former = owner[key] if there else 0
    match random.randrange(8):
        case 0 if isinstance(owner, dict):
            owner.pop(key, None)
        case 1 if isinstance(owner, dict):  # another name, or one more
            owner[random.choice((*_TEXTS, *owner))] = copy.deepcopy(former)
        case 2 if isinstance(owner, list):
            owner.extend([copy.deepcopy(former)] * random.choice((1, 2, 30)))
        case 3:
            other, place = random.choice(places)
            with_it = other[place] if isinstance(other, dict) and place in other else former
            _put(owner, key, copy.deepcopy(with_it))
        case 4:
            _put(owner, key, random.choice(_TEXTS))
        case 5:
            _put(owner, key, random.choice((None, [], {}, [former], {"a": former})))
        case 6 if isinstance(former, str):
            _put(owner, key, changed_text(former.encode("utf-8", "surrogatepass"), random).decode("utf-8", "replace"))
        case _:
            _put(owner, key, random.choice(_NUMBERS))


def _put(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, dict) or key < len(owner):
        owner[key] = value


def changed_file(data: bytes, random: Random) -> bytes:
    """Change a safetensors file: its header, one of its tensors, the bytes of all; mostly so that it still fits."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        body = None if hollow(data) else data[8 + length :]
        if not isinstance(header, dict) or random.random() < 0.05:
            return changed_bytes(data, random)
    except (ValueError, RecursionError):
        return changed_bytes(data, random)
    tensors = [key for key in header if key != "__metadata__"]
    match random.randrange(7):
        case 0:
            header = changed_value(header, random)
        case 1 if tensors:  # another shape or dtype, with bytes for it
            one = random.choice(tensors)
            header[one] = _tensor(header[one], random)
            return file_of(header, body)
        case 2 if tensors:  # another name
            one = random.choice(tensors)
            header[_renamed(one, random)] = header.pop(one)
        case 3 if tensors:
            header.pop(random.choice(tensors))
            return file_of(header, body)
        case 4 if tensors:
            header[_renamed(random.choice(tensors), random)] = copy.deepcopy(header[random.choice(tensors)])
            return file_of(header, body)
        case 5:
            said = header.get("__metadata__", {})
            header["__metadata__"] = changed_value(said, random) if isinstance(said, dict) and said else {"a": "b"}
        case _:
            body = None if body is None else changed_values(body, random)
    text = json.dumps(header).encode()
    if body is None:  # numbers that lie askew are copied, which takes gigabytes of files that are no more than a header
        text += b" " * (-len(text) % 8)
    written = len(text) if random.random() < 0.95 else random.choice((0, 1, 2**63, len(text) + 8, len(text) - 1))
    return (written.to_bytes(8, "little") + text + (body or b""))[:_MOST]


def hollow(data: bytes) -> int:
    """Return how many bytes a file has whose body was left out to keep it small; 0 for any other."""
    try:
        header = json.loads(data[8:])
        ends = [info["data_offsets"][1] for key, info in header.items() if key != "__metadata__"]
        end = max(ends, default=0)
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError, IndexError):
        return 0
    whole = int.from_bytes(data[:8], "little") == len(data) - 8 and isinstance(end, int)
    return len(data) + end if whole and 0 < end <= 64 * _MOST_HOLLOW else 0


def changed_values(body: bytes, random: Random) -> bytes:
    """Change numbers of tensors: NaN, infinite, huge, tiny, or others."""
    if not body:
        return body
    odd = random.choice(
        (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\x01\x00\x00\x00", b"\x00\x7e")
    )
    odd = odd if random.random() < 0.8 else random.randbytes(4)
    at = random.randrange(len(body)) // 4 * 4
    return body[:at] + odd * random.choice((1, 1, 8)) + body[at + len(odd) :]


def file_of(header: dict[str, Any], body: bytes | None = b"") -> bytes:
    """Write a safetensors file of a header whose tensors lie one after the other.

    Args:
        header: what it says, without offsets.
        body: of its beginning; bytes that are missing are 1.0. None leaves all of it out, see `hollow`.
    """
    end = 0
    for key, info in header.items():
        if key != "__metadata__" and isinstance(info, dict):
            start, end = end, end + _size(info, _MOST if body is not None else _MOST_HOLLOW)
            info["data_offsets"] = [start, end]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # as all programs do, so that numbers lie where the processor wants them
    if body is None:
        return len(text).to_bytes(8, "little") + text
    body = (body + b"\x00\x00\x80\x3f" * (max(0, end - len(body)) // 4 + 1))[:end]
    return len(text).to_bytes(8, "little") + text + body


def _size(info: dict[str, Any], most: int) -> int:
    widths = {
        "F64": 8,
        "I64": 8,
        "U64": 8,
        "C64": 8,
        "F32": 4,
        "I32": 4,
        "U32": 4,
        "F16": 2,
        "BF16": 2,
        "I16": 2,
        "U16": 2,
    }
    size = widths.get(str(info.get("dtype")), 1)
    for length in info.get("shape") or () if isinstance(info.get("shape"), list) else ():
        size *= length if isinstance(length, int) and 0 <= length <= _MOST else 1
    return min(size, most)


def _tensor(info: Any, random: Random) -> dict[str, Any]:
    info = dict(info) if isinstance(info, dict) else {}
    if random.random() < 0.3:
        return {**info, "dtype": random.choice(_DTYPES)}
    shape = (
        [length for length in info.get("shape", []) if isinstance(length, int)]
        if isinstance(info.get("shape"), list)
        else []
    )
    match random.randrange(5):
        case 0:
            shape.insert(random.randrange(len(shape) + 1), random.choice((0, 1, 1, 2, 3)))
        case 1 if shape:
            shape.pop(random.randrange(len(shape)))
        case 2:
            random.shuffle(shape)
        case 3:
            shape = []
        case _ if shape:
            shape[random.randrange(len(shape))] = random.choice((0, 1, 2, 3, 4, 5, 8, 16, 64))
    return {**info, "shape": shape}


_PARTS = (
    *("lora_down.weight", "lora_up.weight", "lora_A.weight", "lora_B.weight", "alpha", "dora_scale", "hada_w1_a"),
    *("hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2", "lokr_w1", "lokr_w2", "lokr_w1_a", "lokr_w1_b"),
    *(
        "lokr_w2_a",
        "lokr_w2_b",
        "lokr_t2",
        "oft_blocks",
        "oft_diag",
        "oft_R.weight",
        "diff",
        "diff_b",
        "w_norm",
        "b_norm",
    ),
    *("a1.weight", "a2.weight", "b1.weight", "b2.weight", "on_input", "lora_mid.weight", "weight", "rescale", "scale"),
    *("boft_R", "boft_s", "vera_lambda_b", "lora_magnitude_vector", "reft_lora.alpha", "emb_params", "bias"),
)


def _renamed(key: str, random: Random) -> str:
    if random.random() < 0.7:
        return f"{key.partition('.')[0]}.{random.choice(_PARTS)}"
    return changed_text(key.encode("utf-8", "surrogatepass"), random).decode("utf-8", "replace")


def changed_png(data: bytes, random: Random) -> bytes:
    """Change a chunk of a PNG and put its checksum right, or any bytes."""
    chunks = list(_chunks(data))
    if not chunks or random.random() < 0.2:
        return changed_bytes(data, random)
    at = random.randrange(len(chunks))
    kind, content = chunks[at]
    match random.randrange(5):
        case 0:
            del chunks[at]
        case 1:
            chunks.insert(random.randrange(len(chunks)), (kind, content))
        case 2:
            text = b"parameters\x00" + changed_text(b"a <lora:x:1>\nSteps: 1, Seed: 2, Size: 8x8", random)
            chunks.insert(1, random.choice(((b"tEXt", text), (b"zTXt", b"parameters\x00\x00" + zlib.compress(text)))))
        case 3 if kind == b"IHDR" and len(content) == 13:
            sizes = struct.pack(">II", *(random.choice((0, 1, 8, 5000, 2**31 - 1)) for _ in range(2)))
            chunks[at] = kind, sizes + content[8:]
        case _:
            chunks[at] = kind, changed_bytes(content, random)
    whole = b"".join(
        len(inner).to_bytes(4, "big") + name + inner + zlib.crc32(name + inner).to_bytes(4, "big")
        for name, inner in chunks
    )
    return (data[:8] + whole)[:_MOST]


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while data[:4] == b"\x89PNG" and at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length


def changed_request(data: bytes, random: Random) -> bytes:
    """Change a request that is kept as JSON; its body, which is base64, as what it is."""
    try:
        value = json.loads(data)
        body = base64.b64decode(value["body"])
    except (ValueError, RecursionError, KeyError, TypeError, binascii.Error):
        return changed_json(data, random)
    if body and random.random() < 0.7:
        changes: Callable[[bytes, Random], bytes] = changed_png if body[:4] == b"\x89PNG" else changed_json
        return json.dumps({**value, "body": base64.b64encode(changes(body, random)).decode()}).encode()
    return changed_json(data, random)
