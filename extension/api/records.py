"""The records that the routes take and answer: the OpenAPI document and the types of the tab are made from them."""

# no `from __future__ import annotations`: `schema.py` reads these types, and old Pythons hide `NotRequired` in a text

from typing import Annotated, Any, Literal, NewType

from typing_extensions import NotRequired, TypedDict

from ..generation.compare import Mode

Pair = tuple[int, int]
Texts = list[str]
TagState = Literal["applied", "partly", "waiting", "none", "failed", "missing", "handed"]


class Error(TypedDict):
    """Why a request was refused, or failed."""

    detail: Annotated[str, "one sentence: what, where, and what to do"]


class NotesWanted(TypedDict, total=False):
    """A change of the notes on a file."""

    words: str
    negative: str
    tags: Texts
    notes: str
    rating: Annotated[int, {"minimum": 0, "maximum": 5}]
    favourite: bool
    hidden: bool
    strength: float | None
    alpha: float | None
    description: str


class ListedNotes(TypedDict):
    """The notes on a file in a list."""

    negative: Annotated[str, "words for the negative prompt"]
    groups: Annotated[Texts, "trigger words that belong together, as Civitai lists them"]
    tags: Texts
    notes: str
    rating: Annotated[int, {"minimum": 0, "maximum": 5}]
    favourite: bool
    hidden: Annotated[bool, "by the user: lists leave it out unless they are asked for hidden files"]
    strength: Annotated[float | None, "preferred strength"]
    alpha: Annotated[float | None, "in place of the file's own alpha"]
    page: Annotated[str, "where a site has the file; empty if none told"]
    newer: Annotated[str, "where a site had a newer version when it was asked last; empty for none"]


class Lora(ListedNotes):
    """One file of the library."""

    id: Annotated[str, "id of the file in these routes; changes if the file is moved"]
    name: Annotated[str, "as in <lora:name:0.8>"]
    alias: str
    file: Annotated[str, "path below its LoRA folder, without suffix"]
    folder: str
    read: Annotated[bool, "whether the header has been read"]
    readable: bool
    reason: Annotated[str, "why the file cannot be used; empty if it can"]
    family: Annotated[str | None, "a key of `families`"]
    named: Annotated[str | None, "the family that its header or notes name, if its layers are of another"]
    base_model: str | None
    kind: Annotated[str, "adapter kinds, the most frequent first, such as lora+dora"]
    rank: Annotated[Pair | None, "lowest and highest"]
    layers: int
    format: str
    size: Annotated[int, "bytes"]
    mtime: Annotated[float, "seconds since 1970, like `added` and `used`"]
    words: Annotated[str, "trigger words, as they are put into a prompt"]
    captions: Annotated[str, "frequent words of the training captions"]
    added: float
    used: Annotated[float, "0 means never"]
    uses: int
    picture: Annotated[str, "changes if the picture changes; empty without a picture"]


class Distilled(TypedDict):
    """The settings that a distilled LoRA was made for."""

    method: str
    steps: Annotated[Pair, "least and most steps"]
    cfg: Annotated[tuple[float, float], "least and most CFG scale; 1 is without guidance"]
    sampler: str
    scheduler: str
    shift: float | None


class NewerVersion(TypedDict):
    """A newer version of a file on its site."""

    version: str
    page: str
    published: Annotated[str, "ISO 8601"]


class OnlineLora(TypedDict):
    """What a site said of a file when it was asked last."""

    site: Annotated[str, "a key of `sites` in `GET online`"]
    page: Annotated[str, "its address"]
    model: str
    version: str
    base_model: str
    creator: str
    licence: Annotated[str, "its name; empty if the site tells terms"]
    terms: Annotated[Texts, "such as credit or no_derivatives, and the commercial uses that are allowed, such as sell"]
    newer: NewerVersion | None
    checked: Annotated[float, "seconds since 1970"]


class LoraDetails(Lora):
    """All data of one file."""

    path: str
    description: str
    problems: Texts
    kinds: dict[str, int]
    training: dict[str, str]
    training_tags: Annotated[list[tuple[str, int]], "words of the training captions, and how often they occur"]
    distilled: Annotated[Distilled | None, "null unless it is a known distilled LoRA"]
    scale_is_guess: Annotated[bool, "nothing tells the file's alpha, and the user gave none"]
    sidecars: Annotated[Texts, "files beside the LoRA that were read"]
    hash: Annotated[str, "12 hex digits, as in `Lora hashes`; empty until it is computed"]
    online: Annotated[OnlineLora | None, "null unless it was looked up"]


class Scan(TypedDict):
    """The progress of reading the folders."""

    running: bool
    done: int
    total: int


class FamilyFit(TypedDict):
    """A family of models, and whether the loaded model is of it."""

    name: str
    title: str
    fits: bool
    usable: Annotated[bool, "false if the web UI loads no model of it"]
    reason: str


class Loras(TypedDict):
    """The files, or the ones that changed."""

    revision: Annotated[int, "value for `since`"]
    whole: Annotated[bool, "false if the answer has only changes"]
    loras: list[Lora]
    gone: Annotated[Texts, "ids of removed files"]
    families: dict[str, FamilyFit]
    scan: Scan
    problem: str


class FilesNoted(TypedDict):
    """A change of the notes on several files."""

    ids: Annotated[Texts, "at most 500"]
    add: NotRequired[Annotated[Texts, "tags that each of them gets, beside its own"]]
    remove: NotRequired[Annotated[Texts, "tags that none of them keeps"]]
    rating: NotRequired[Annotated[int, {"minimum": 0, "maximum": 5}]]


class FilesMoved(TypedDict):
    """Where files are to be, or what they are to be called."""

    ids: Annotated[Texts, "at most 500"]
    folder: NotRequired[Annotated[str, "path below a LoRA folder; made if there is none"]]
    name: NotRequired[Annotated[str, "new name of a single file, without suffix"]]
    names: NotRequired[Annotated[Texts, "new name of each file; a file that cannot have it stays"]]
    number: NotRequired[Annotated[bool, "give a number to a name that is taken; otherwise its file stays"]]


class FilesChosen(TypedDict):
    """Files that something is done with."""

    ids: Annotated[Texts, "at most 500"]


class ChangeUndone(TypedDict):
    """A change of files that is taken back."""

    undo: Annotated[str, "key from the answer to the change"]


class FileRefused(TypedDict):
    """A file that stays as it is."""

    id: str
    reason: str
    taken: Annotated[bool, "another file has its place"]


class FilesChanged(TypedDict):
    """What became of files; each was changed whole, or not at all."""

    changed: Annotated[list[tuple[str, str]], "id of a file before and after; the latter is empty if it is deleted"]
    refused: list[FileRefused]
    undo: Annotated[str, "key that takes it back, while the web UI runs; empty if nothing can be taken back"]


class DeletedLora(TypedDict):
    """One file of the trash."""

    id: Annotated[str, "for the routes of the trash"]
    name: str
    folder: Annotated[str, "where it was"]
    size: Annotated[int, "bytes, with the files beside it"]
    deleted: Annotated[float, "seconds since 1970"]


class Trash(TypedDict):
    """The deleted files, the latest first."""

    files: list[DeletedLora]


class NamesWanted(TypedDict):
    """Names to look up."""

    names: Annotated[Texts, "at most 50"]


class Meaning(TypedDict):
    """The file that a name means, or why it means none."""

    id: str | None
    name: NotRequired[str]
    problem: str
    note: str
    candidates: Texts


class Meanings(TypedDict):
    """The meaning of each name."""

    names: dict[str, Meaning]


class OnlineSite(TypedDict):
    """A site that may be asked."""

    key: str
    name: str
    host: Annotated[str, "the one that is asked"]
    token: Annotated[bool, "whether the environment has the user's key; it is never told"]
    token_variable: Annotated[str, "the environment variable with the key"]


class OnlineFile(TypedDict):
    """A file that was looked up, if it has a newer version or something failed."""

    id: str
    state: Literal["newer", "failed"]
    reason: str


class OnlineJob(TypedDict):
    """The latest look-up or download."""

    id: str
    kind: Literal["lookup", "download", "newer"]
    running: bool
    cancelled: bool
    problem: Annotated[str, "why it ended early; empty if it did not"]
    done: Annotated[int, "files, or bytes of a download"]
    total: Annotated[int, "0 if a site does not tell it"]
    there: Annotated[int, "bytes of the file that is downloaded"]
    size: Annotated[int, "all bytes of that file; 0 if a site does not tell it"]
    found: Annotated[
        int, "files that a site knows, those with a newer version too; newer versions that were downloaded"
    ]
    unknown: int
    files: Annotated[list[OnlineFile], "the first 500"]
    file: Annotated[str | None, "id of the downloaded one"]
    name: Annotated[str, "of the downloaded one"]
    note: Annotated[str, "what is missing beside the downloaded one; empty for nothing"]


class Online(TypedDict):
    """Whether sites may be asked, and the latest job."""

    on: bool
    sites: list[OnlineSite]
    folders: Annotated[Texts, "that a file may be downloaded into"]
    job: OnlineJob | None


class OnlineWanted(TypedDict):
    """The setting "Look up and download LoRA online"."""

    on: bool


class LookUpWanted(TypedDict):
    """Files to look up."""

    ids: Annotated[Texts, "empty for all files"]
    page: NotRequired[Annotated[str, "where a file is from; without it, its hash is asked for"]]


class NewerWanted(TypedDict):
    """Files whose newer versions are downloaded."""

    ids: Annotated[Texts, "files for which the last look-up told of a newer version"]


class DownloadWanted(TypedDict):
    """A file to download."""

    page: Annotated[str, "of a model or a file on Civitai or Hugging Face"]
    folder: NotRequired[Annotated[str, "one of `folders`"]]
    name: NotRequired[Annotated[str, "of the file; without it, the site's"]]


class PublishedRange(TypedDict):
    """A range that others give for a measure."""

    measure: str
    low: float | None
    high: float
    source: str
    address: str


class CheckVerdict(TypedDict):
    """A verdict of the doctor on a file."""

    name: Annotated[str, "the same in all versions; docs/doctor.md lists them"]
    sure: Annotated[bool, "whether it counts numbers of the file; else it is a hint"]
    numbers: Annotated[dict[str, float], "the values of its measure, and of what to do"]
    blocks: Annotated[Texts, "blocks, or text encoders, to weaken"]
    figure: Annotated[str, "that it judges, of `standings`"]
    published: Annotated[PublishedRange | None, "what others give for its measure"]
    text: Annotated[str, "measure, value, what to do, and the range that others give"]
    layers: Annotated[Texts, "layers or keys, the first 20"]
    count: Annotated[int, "layers or keys in all"]


class CheckBlock(TypedDict):
    """The part of a file in one block of the model."""

    component: str
    block: Annotated[str, "as block weights name it; empty for layers in no block"]
    layers: int
    share: Annotated[float, "of the energy, from 0 to 1"]
    spectral: Annotated[float, "the largest singular value of its layers"]
    relative: Annotated[float | None, "the norm divided by that of the model's weights; null where they were not read"]
    rank_90: Annotated[int, "the rank that has 90% of the energy of each layer"]
    rank_99: int


class FileCheck(TypedDict):
    """What the doctor says of a file; docs/doctor.md explains the measures."""

    norm: float
    relative: Annotated[float | None, "the norm divided by that of the model's weights; null where they were not read"]
    rank: Annotated[int, "the largest"]
    rank_90: Annotated[int, "the rank that has 90% of the energy of each layer"]
    rank_99: int
    components: Annotated[dict[str, float], "the share of each in the energy"]
    blocks: list[CheckBlock]
    kept: Annotated[list[tuple[int, float]], "ranks, and the share of the energy that is left at each"]
    spectrum: Annotated[list[float], "the share of each direction in the energy of all layers, the strongest 64"]
    trained: Annotated[dict[str, str], "what the header says of the training"]
    unmeasured: Annotated[dict[str, int], "layers that cannot be measured without the model, by kind"]
    faults: Annotated[list[str], "why parts of a folder that PEFT saved component by component are not measured"]
    verdicts: list[CheckVerdict]


class Standing(TypedDict):
    """Where a figure of a file is among the files of its family that were read for copies."""

    others: int
    smaller: Annotated[int, "of these"]
    same: int


class CheckedFile(TypedDict):
    """What the doctor says of a file, or how far it is."""

    done: Annotated[int, "layers"]
    layers: Annotated[int, "of the whole file; 0 until they are counted"]
    result: Annotated[FileCheck | None, "null until it is done"]
    standings: Annotated[dict[str, Standing], "by figure, such as `norm`; empty until it was read, see `copies`"]


class CheckPair(TypedDict):
    """Two files in one band of blocks; `..._by_chance` is what random changes have."""

    files: Annotated[Pair, "positions in `ids`"]
    component: str
    band: Annotated[str, "such as IN00 to IN05"]
    layers: Annotated[int, "that both change"]
    relation: Literal["reinforce", "cancel", "collide", "independent"]
    cosine: Annotated[float, "1 for the same change, -1 for the opposite one"]
    cosine_by_chance: Annotated[float, "its standard deviation"]
    mean_cosine: Annotated[float, "of the layers, each of which counts the same"]
    outputs: Annotated[float, "the share of the directions written to that both use"]
    outputs_by_chance: float
    inputs: Annotated[float, "the share of the directions read from that both use"]
    inputs_by_chance: float


class FilesTogether(TypedDict):
    """What files do to each other at their strengths and block weights."""

    norm: Annotated[float, "of their sum"]
    alone: Annotated[list[float], "the norm of each; 0 where only the model's weights tell it"]
    left: Annotated[list[float], "how much of each is left in the sum, along its own change: 1 is all, 0 nothing"]
    factor: Annotated[float, "on all strengths, at which the sum has the norm of the strongest file alone"]
    alive: Annotated[list[float] | None, "factors at which the sum leaves half of each file; null if none do"]
    pairs: list[CheckPair]


Uncounted = Literal["schedule", "region", "passes", "prompt", "images", "rule", "random"]


class CheckedStack(TypedDict):
    """What files do to each other, or how far that is."""

    done: Annotated[int, "layers"]
    layers: Annotated[int, "of the model; 0 until they are counted"]
    ids: Texts
    strengths: Annotated[list[float], "of the denoiser; of a schedule, the value farthest from 0"]
    tags: Annotated[str, "as asked for"]
    uncounted: Annotated[list[Uncounted], "what the tags have that the result does not count"]
    result: Annotated[FilesTogether | None, "null until it is done"]


class CopiedFile(TypedDict):
    """A file of a group of copies."""

    id: str
    precisions: Annotated[Texts, "of its tensors, such as float16"]
    other: Annotated[str | None, "id of the file that it is compared with; null of the first of the group"]
    alike: Literal["same", "precision", "rank", "scaled", "resized", "near", "epoch"] | None
    steps: Annotated[int | None, "of its training until it was saved, if its header tells"]
    cosine: Annotated[float, "1 for the same change"]
    factor: Annotated[float, "it is about this times the other file"]


class MergedFile(TypedDict):
    """A file that is the sum of two others."""

    id: str
    parents: Annotated[tuple[str, str], "ids"]
    strengths: tuple[float, float]
    left: Annotated[float, "the share of its energy that they do not explain"]


class LeftOut(TypedDict):
    """A file that cannot be compared."""

    id: str
    reason: str


class Copies(TypedDict):
    """Files that are copies of others, as far as they are compared."""

    running: Annotated[bool, "whether files are being read or compared"]
    done: Annotated[int, "files that are read"]
    total: int
    left_out: Annotated[list[LeftOut], "files that cannot be compared"]
    groups: Annotated[list[list[CopiedFile]], "of this page; the first of a group is the one to keep"]
    found: Annotated[int, "groups on all pages"]
    per_page: int
    firsts: Annotated[Texts, "ids of the first of each group, on all pages"]
    others: Annotated[Texts, "ids of the others"]
    superseded: Annotated[Texts, "ids of the files whose training wrote a later file, which is here, too"]
    merges: Annotated[list[MergedFile], "files that are sums of two others"]


Inspection = NewType("Inspection", dict[str, Any])
"""The output of `python -m lib_lora inspect --json`."""


class StackEntry(TypedDict):
    """One LoRA that is always on."""

    name: str
    on: bool
    unet: float
    text_encoder: float
    more: Annotated[str, "other fields of a tag, such as lbw=OUTALL:stop=10"]


class StackEntryWanted(TypedDict):
    """The same as it is sent: a missing field has its default."""

    name: str
    on: NotRequired[bool]
    unet: NotRequired[float]
    text_encoder: NotRequired[float]
    more: NotRequired[str]


class Stack(TypedDict):
    """The list "Always on"."""

    version: int
    always_on: bool
    entries: list[StackEntry]
    problem: str


class StackWanted(TypedDict, total=False):
    """A new list "Always on"."""

    version: int
    always_on: bool
    entries: list[StackEntryWanted]


class GrammarWanted(TypedDict):
    """The setting "Tags obey the brackets around them"."""

    on: bool


class Family(TypedDict):
    """A family of models, as a report names it."""

    name: str
    title: str
    sure: bool


class Outcome(TypedDict):
    """The outcome of one tag in the latest picture."""

    name: str
    asked: Annotated[str, "the name in the prompt, or the whole text of a tag that cannot be read"]
    where: Annotated[Literal["prompt", "negative", "always"], "where the tag is written"]
    number: Annotated[int, "of the tag in its prompt, or of the entry of the stack, from 0"]
    written: Annotated[str, "the text between `<lora:` and `>`"]
    state: TagState
    reason: Annotated[str, "why the tag is not applied as written; empty if it is"]
    advice: Annotated[str, "what to do about that"]
    hit: Annotated[int, "layers of the file that act"]
    layers: int | None
    changed: Annotated[int, "layers of the model"]
    bytes: int
    seconds: Annotated[float, "time to read the file and to find its layers"]
    warning: str
    hint: Annotated[str, "what the place of the tag in its prompt does not do"]
    format: str | None
    family: Family | None
    base_model: str | None
    model: Family | None
    kinds: dict[str, int]
    ranks: list[int] | None
    unused: Annotated[dict[str, Texts], "keys without effect, by reason"]
    causes: dict[str, str]
    details: dict[str, str]
    images: list[int]
    always_on: bool


class CatalogState(Scan):
    """The progress of reading the folders, and the revision of the list."""

    revision: int


class LayersDone(TypedDict):
    """How far a file is."""

    done: Annotated[int, "layers"]
    layers: Annotated[int, "of the whole file"]


class State(TypedDict):
    """The latest picture, and what changes while nobody asks."""

    version: str
    host: str
    enabled: bool
    own_lora: Annotated[bool, "the web UI applies the tags itself where Remora does not"]
    default_multiplier: float
    grammar: Annotated[bool, "brackets around tags mean something"]
    comments: Annotated[bool, "# in a prompt begins a comment"]
    parts: Annotated[bool, "AND divides prompts into parts of their own rows"]
    model: Annotated[str | None, "family of the loaded model"]
    images: int
    loras: list[Outcome]
    merged: Annotated[int, "layers"]
    live: dict[str, int]
    notes: Annotated[Texts, "sentences about the picture that are not about one of its `loras`"]
    conflicts: Texts
    combining: Annotated[LayersDone | None, "the LoRA of a picture that are combined by a rule now"]
    pictures: Annotated[int, "pictures made in this session"]
    catalog: CatalogState
    stack: Annotated[str, "the present ETag of `GET stack`, without quotes"]


class UsedLora(TypedDict):
    """One LoRA of one picture."""

    id: Annotated[str | None, "id of the file; null without one"]
    name: Annotated[str, "as in the tag"]
    strength: Annotated[str, "such as 0.8 or schedule"]
    state: TagState
    reason: str
    always_on: bool


class MadePicture(TypedDict):
    """One picture of this session."""

    id: int
    time: Annotated[float, "seconds since 1970"]
    seed: int
    thumbnail: bool
    loras: list[UsedLora]


class Pictures(TypedDict):
    """The pictures of this session, the latest first."""

    count: Annotated[int, "pictures made in this session; the latest 200 are kept"]
    found: Annotated[int, "pictures that fit the query"]
    pictures: list[MadePicture]


class OutputsProgress(TypedDict):
    """How far the pictures in the output folders are read."""

    scan: Scan
    problem: str


class OutputLora(TypedDict):
    """One LoRA of one picture, by its parameters text."""

    id: Annotated[str | None, "id of the file; null without one"]
    name: Annotated[str, "as in the tag"]
    hash: Annotated[str, "hex digits; empty if the text has none"]
    strength: Annotated[str, "as in the tag, such as 0.8 or 0.8:stop=10; empty if the tag has none"]


class OutputPicture(TypedDict):
    """One picture in the output folders."""

    id: int
    time: Annotated[float, "seconds since 1970"]
    file: Annotated[str, "path below its output folder"]
    width: int
    height: int
    seed: int | None
    prompt: Annotated[str, "the first 1,000 characters"]
    loras: list[OutputLora]


class OutputPictures(OutputsProgress):
    """Pictures in the output folders, the latest first."""

    total: Annotated[int, "pictures that are read"]
    found: Annotated[int, "pictures that fit the query"]
    pictures: Annotated[list[OutputPicture], "60 of them, or `most`, behind the first `skip`"]


class CountedLora(TypedDict):
    """One LoRA, and the pictures that used it."""

    id: Annotated[str | None, "id of the file; null without one"]
    name: str
    pictures: int
    latest: Annotated[float, "time of the latest of them, in seconds since 1970"]
    strength: Annotated[str, "in that one, as in the tag; empty if the tag has none"]
    strengths: Annotated[tuple[float, float] | None, "the lowest and the highest number; null without any"]


class CountedLoras(OutputsProgress):
    """All LoRA of the pictures, the most used first."""

    loras: list[CountedLora]


class Preset(TypedDict):
    """A saved list of LoRA."""

    name: str
    text: Annotated[str, "one line for each LoRA: its tag, then its trigger words"]
    thumbnail: Annotated[str, "changes if the picture changes; empty without a picture"]
    parameters: Annotated[str, "the parameters text of a picture that was made with it; may be empty"]


class PresetFile(TypedDict):
    """One preset as a file, which `POST presets` and `POST recipe` read."""

    remora_preset: Annotated[int, "version, 1"]
    name: str
    text: Annotated[str, "one line for each LoRA: its tag, then its trigger words"]
    thumbnail: Annotated[str, "WebP as base64; may be empty"]
    parameters: NotRequired[Annotated[str, "the parameters text of a picture"]]
    sketches: NotRequired[Annotated[dict[str, str], "by name, what finds a LoRA by its tensors, as base64"]]


class RecipeLora(TypedDict):
    """One LoRA of a recipe."""

    name: Annotated[str, "as in the tag"]
    strength: Annotated[str, "as in the tag; empty if the tag has none"]
    id: Annotated[str | None, "id of the file; null without one"]
    by: Annotated[
        Literal["hash", "tensors", "name", "other", ""],
        "how the file was found; `other` is a file of this name that has another hash",
    ]


class Recipe(TypedDict):
    """The prompt, settings, model and LoRA of a picture or a preset."""

    name: Annotated[str, "of the preset; empty without one"]
    file: Annotated[str, "path below the output folder, if the picture is there"]
    text: Annotated[str, "the parameters text as it is written"]
    own: Annotated[str, "the same with the names that the LoRA have here"]
    tags: Annotated[str, "the tags of its LoRA, under the names they have here"]
    prompt: str
    negative: str
    settings: dict[str, str]
    model: str
    loras: list[RecipeLora]
    searching: Annotated[bool, "a LoRA may be found later: files are still being read"]


class Presets(TypedDict):
    """All presets."""

    presets: list[Preset]
    problem: str


class PresetWanted(TypedDict):
    """A preset to save."""

    text: str
    former: NotRequired[Annotated[str, "the name that it had"]]
    parameters: NotRequired[Annotated[str, "the parameters text of a picture; without it, the former one stays"]]


class Text(TypedDict):
    """A text to import."""

    text: str


class Block(TypedDict):
    """A block of the loaded model."""

    id: str
    title: str


class Layout(TypedDict):
    """A list of weights that the model takes."""

    length: int
    ids: Texts


class BlockPreset(TypedDict):
    """A saved list of block weights."""

    name: str
    values: Annotated[str, "numbers, R, U or X, separated by commas"]
    own: Annotated[bool, "saved by the user"]


class Blocks(TypedDict):
    """The blocks of the loaded model, and what may weigh them."""

    blocks: Annotated[list[Block], "in the order of its first layout; empty without a model"]
    layouts: Annotated[list[Layout], "by length"]
    presets: list[BlockPreset]
    rules: Annotated[Texts, "names for lbwe="]
    about_rules: Annotated[dict[str, str], "what each of them does"]
    problem: str


class BlockPresetWanted(TypedDict):
    """A list of block weights to save."""

    name: str
    values: str


class Region(TypedDict):
    """A part of the picture."""

    name: Annotated[str, "name for mask="]
    own: Annotated[bool, "saved by the user"]
    share: Annotated[float, "share of the picture, from 0 to 1"]
    picture: Annotated[str, "grey PNG as base64, white where a LoRA acts"]


class Regions(TypedDict):
    """All regions."""

    regions: list[Region]
    problem: str


class RegionWanted(TypedDict):
    """A region to save."""

    name: str
    picture: Annotated[str, "a picture file as base64, or as a data URL, white where a LoRA acts"]


class CompareWanted(TypedDict):
    """A comparison to make."""

    prompt: str
    names: Annotated[Texts, "names of LoRA in the prompt"]
    mode: NotRequired[Mode]
    values: NotRequired[
        Annotated[
            list[float] | Texts,
            "strengths for the modes that compare strengths; texts such as OUTALL, left or stop=10 for blocks, regions "
            "and schedules, with None for none; for a sheet, what the prompt of each row begins with; for instead, the "
            "name of one LoRA that is in the place of all `names`",
        ]
    ]
    negative_prompt: NotRequired[str]
    steps: NotRequired[int]
    sampler: NotRequired[str]
    schedule: NotRequired[str]
    cfg_scale: NotRequired[float]
    width: NotRequired[int]
    height: NotRequired[int]
    seed: NotRequired[Annotated[int, "-1: one random seed for all; rows of a sheet count from it"]]
    grows: NotRequired[Annotated[str, "id of the latest comparison: only rows are added, with its settings"]]


class Comparison(TypedDict):
    """A grid of pictures that differ only in their LoRA."""

    id: str
    columns: Texts
    rows: Texts
    prompts: Annotated[list[str | None], "row by row, like `done`; null is the difference of the two before it"]
    done: list[bool]
    running: bool
    cancelled: bool
    problem: str
    at: Annotated[int, "cell"]
    fraction: float
    seed: Annotated[int, "of the first row; each row of a sheet has the next one"]


class Compare(TypedDict):
    """The latest comparison."""

    possible: bool
    samplers: Texts
    comparison: Comparison | None
    examples: Annotated[Texts, "prompts for a sheet that the loaded model understands"]


class SaveWanted(TypedDict):
    """A file to save or to preview."""

    what: NotRequired[
        Annotated[
            Literal["file", "model", "difference"],
            "the LoRA of tags as one file (usual), a model with them in its weights, or what `tuned` has more than "
            "`model`",
        ]
    ]
    model: NotRequired[Annotated[str, "one of `models`: the LoRA are put into a copy beside it, or the base"]]
    tuned: NotRequired[Annotated[str, "one of `models`"]]
    rounding: NotRequired[Annotated[Literal["nearest", "stochastic"], "of the weights of a model"]]
    name: NotRequired[Annotated[str, "of the file, without suffix; a preview needs none"]]
    folder: NotRequired[Annotated[str, "one of `folders`, or another one below the LoRA folders"]]
    tags: NotRequired[Annotated[Texts, "such as <lora:zorp:0.8>; without it, the tags of the latest picture"]]
    how: NotRequired[
        Annotated[
            Literal[
                "sum",
                "svd",
                "linear",
                "ties",
                "ties_svd",
                "dare_linear",
                "dare_linear_svd",
                "dare_ties",
                "dare_ties_svd",
                "magnitude_prune",
                "magnitude_prune_svd",
                "orthogonal",
            ],
            "the rule; without it, the one of the tags, as `combine=ties`",
        ]
    ]
    density: NotRequired[Annotated[float | None, "the share of the numbers that ties, dare and magnitude_prune keep"]]
    seed: NotRequired[Annotated[int, "of the numbers that dare and the stochastic rounding draw"]]
    kind: NotRequired[Annotated[Literal["lora", "lokr"], "of the layers"]]
    factor: NotRequired[Annotated[int | None, "rows and columns of the first matrix of a LoKr, at most"]]
    pad: NotRequired[Annotated[int | None, "the rank to which lower ones are filled up with zeros"]]
    negative: NotRequired[
        Annotated[
            bool | None, "whether the strengths of the negative prompt are saved, where `half=` makes them differ"
        ]
    ]
    spelling: NotRequired[Annotated[Literal["kohya", "diffusers", "comfy"], "of the keys"]]
    dtype: NotRequired[Literal["float32", "float16", "bfloat16"]]
    rank: NotRequired[Annotated[int | None, "the largest of a layer"]]
    size: NotRequired[Annotated[int | None, "the largest of the file, in bytes"]]
    error: NotRequired[Annotated[float | None, "the largest of all layers, as 0.05"]]
    step: NotRequired[
        Annotated[int | None, "of which the strengths are saved, from 0, where they differ from step to step"]
    ]
    steps: NotRequired[Annotated[int, "of the picture, for `step`; 20 without it"]]
    replace: NotRequired[Annotated[bool, "whether a file of that name is replaced"]]
    picture: NotRequired[Annotated[bool, "whether the file gets the latest picture"]]
    preview: NotRequired[Annotated[bool, "write nothing"]]


class SavedLayer(TypedDict):
    """One layer of a saved file."""

    component: str
    name: str
    rank: Annotated[int | None, "null for a whole difference, 0 for a layer that is left out"]
    error: Annotated[float, "as a share of its change"]


class SavedLora(TypedDict):
    """A saved file, or a preview of one."""

    id: Annotated[str, "of the file; empty for a preview"]
    name: Annotated[str, "as in <lora:name:1>; empty for a preview"]
    path: str
    bytes: int
    layers: int
    ranks: Annotated[Pair | None, "lowest and highest; null where no layer has one"]
    whole: Annotated[int, "layers of which the whole difference is saved"]
    left_out: Annotated[int, "layers that matter too little"]
    error: Annotated[float, "of all layers, as a share of their change; for a preview, without rounding"]
    worst: Annotated[str, "the layer of the largest error"]
    worst_error: float
    output_error: Annotated[float | None, "of what the layers make of the inputs that were taken; null without them"]
    each: Annotated[list[SavedLayer], "the layer of the largest error first"]
    notes: Texts
    seconds: Annotated[float, "its duration; of a preview, the estimated duration of saving"]


class SaveJob(TypedDict):
    """A file that is saved, or a preview that is made."""

    id: str
    preview: bool
    done: Annotated[int, "layers"]
    layers: Annotated[int, "of all LoRA; 0 until they are counted"]
    running: bool
    cancelled: bool
    problem: str
    result: Annotated[SavedLora | None, "null until it is done"]


class Save(TypedDict):
    """The latest job."""

    job: SaveJob | None
    inputs: Annotated[
        Literal["", "wanted", "taken"],
        "of the layers of the loaded model, which tell the error of outputs: `wanted` in the next picture, or `taken`",
    ]


class InputsWanted(TypedDict):
    """Whether inputs of layers are taken in the next picture."""

    on: bool


class SaveChoices(TypedDict):
    """The folders that a file may be saved in, and the models that it may be made of."""

    models: Annotated[Texts, "names of the models on disk that the web UI lists, the loaded one first"]
    folders: Annotated[Texts, "below the LoRA folders; an empty text is the first LoRA folder"]
