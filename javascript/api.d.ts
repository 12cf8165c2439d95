// Written by `python -m extension.api.contract`.

/** Why a request was refused, or failed. */
export interface Error {
    /** one sentence: what, where, and what to do */
    detail: string;
}

/** One file of the library. */
export interface Lora {
    /** words for the negative prompt */
    negative: string;
    /** trigger words that belong together, as Civitai lists them */
    groups: string[];
    tags: string[];
    notes: string;
    rating: number;
    favourite: boolean;
    /** by the user: lists leave it out unless they are asked for hidden files */
    hidden: boolean;
    /** preferred strength */
    strength: number | null;
    /** in place of the file's own alpha */
    alpha: number | null;
    /** where a site has the file; empty if none told */
    page: string;
    /** where a site had a newer version when it was asked last; empty for none */
    newer: string;
    /** id of the file in these routes; changes if the file is moved */
    id: string;
    /** as in <lora:name:0.8> */
    name: string;
    alias: string;
    /** path below its LoRA folder, without suffix */
    file: string;
    folder: string;
    /** whether the header has been read */
    read: boolean;
    readable: boolean;
    /** why the file cannot be used; empty if it can */
    reason: string;
    /** a key of `families` */
    family: string | null;
    /** the family that its header or notes name, if its layers are of another */
    named: string | null;
    base_model: string | null;
    /** adapter kinds, the most frequent first, such as lora+dora */
    kind: string;
    /** lowest and highest */
    rank: [number, number] | null;
    layers: number;
    format: string;
    /** bytes */
    size: number;
    /** seconds since 1970, like `added` and `used` */
    mtime: number;
    /** trigger words, as they are put into a prompt */
    words: string;
    /** frequent words of the training captions */
    captions: string;
    added: number;
    /** 0 means never */
    used: number;
    uses: number;
    /** changes if the picture changes; empty without a picture */
    picture: string;
}

/** A family of models, and whether the loaded model is of it. */
export interface FamilyFit {
    name: string;
    title: string;
    fits: boolean;
    /** false if the web UI loads no model of it */
    usable: boolean;
    reason: string;
}

/** The progress of reading the folders. */
export interface Scan {
    running: boolean;
    done: number;
    total: number;
}

/** The files, or the ones that changed. */
export interface Loras {
    /** value for `since` */
    revision: number;
    /** false if the answer has only changes */
    whole: boolean;
    loras: Lora[];
    /** ids of removed files */
    gone: string[];
    families: {[name: string]: FamilyFit};
    scan: Scan;
    problem: string;
}

/** The settings that a distilled LoRA was made for. */
export interface Distilled {
    method: string;
    /** least and most steps */
    steps: [number, number];
    /** least and most CFG scale; 1 is without guidance */
    cfg: [number, number];
    sampler: string;
    scheduler: string;
    shift: number | null;
}

/** A newer version of a file on its site. */
export interface NewerVersion {
    version: string;
    page: string;
    /** ISO 8601 */
    published: string;
}

/** What a site said of a file when it was asked last. */
export interface OnlineLora {
    /** a key of `sites` in `GET online` */
    site: string;
    /** its address */
    page: string;
    model: string;
    version: string;
    base_model: string;
    creator: string;
    /** its name; empty if the site tells terms */
    licence: string;
    /** such as credit or no_derivatives, and the commercial uses that are allowed, such as sell */
    terms: string[];
    newer: NewerVersion | null;
    /** seconds since 1970 */
    checked: number;
}

/** All data of one file. */
export interface LoraDetails {
    /** words for the negative prompt */
    negative: string;
    /** trigger words that belong together, as Civitai lists them */
    groups: string[];
    tags: string[];
    notes: string;
    rating: number;
    favourite: boolean;
    /** by the user: lists leave it out unless they are asked for hidden files */
    hidden: boolean;
    /** preferred strength */
    strength: number | null;
    /** in place of the file's own alpha */
    alpha: number | null;
    /** where a site has the file; empty if none told */
    page: string;
    /** where a site had a newer version when it was asked last; empty for none */
    newer: string;
    /** id of the file in these routes; changes if the file is moved */
    id: string;
    /** as in <lora:name:0.8> */
    name: string;
    alias: string;
    /** path below its LoRA folder, without suffix */
    file: string;
    folder: string;
    /** whether the header has been read */
    read: boolean;
    readable: boolean;
    /** why the file cannot be used; empty if it can */
    reason: string;
    /** a key of `families` */
    family: string | null;
    /** the family that its header or notes name, if its layers are of another */
    named: string | null;
    base_model: string | null;
    /** adapter kinds, the most frequent first, such as lora+dora */
    kind: string;
    /** lowest and highest */
    rank: [number, number] | null;
    layers: number;
    format: string;
    /** bytes */
    size: number;
    /** seconds since 1970, like `added` and `used` */
    mtime: number;
    /** trigger words, as they are put into a prompt */
    words: string;
    /** frequent words of the training captions */
    captions: string;
    added: number;
    /** 0 means never */
    used: number;
    uses: number;
    /** changes if the picture changes; empty without a picture */
    picture: string;
    path: string;
    description: string;
    problems: string[];
    kinds: {[name: string]: number};
    training: {[name: string]: string};
    /** words of the training captions, and how often they occur */
    training_tags: [string, number][];
    /** null unless it is a known distilled LoRA */
    distilled: Distilled | null;
    /** nothing tells the file's alpha, and the user gave none */
    scale_is_guess: boolean;
    /** files beside the LoRA that were read */
    sidecars: string[];
    /** 12 hex digits, as in `Lora hashes`; empty until it is computed */
    hash: string;
    /** null unless it was looked up */
    online: OnlineLora | null;
}

/** A change of the notes on a file. */
export interface NotesWanted {
    words?: string;
    negative?: string;
    tags?: string[];
    notes?: string;
    rating?: number;
    favourite?: boolean;
    hidden?: boolean;
    strength?: number | null;
    alpha?: number | null;
    description?: string;
}

/** The file that a name means, or why it means none. */
export interface Meaning {
    id: string | null;
    name?: string;
    problem: string;
    note: string;
    candidates: string[];
}

/** The meaning of each name. */
export interface Meanings {
    names: {[name: string]: Meaning};
}

/** Names to look up. */
export interface NamesWanted {
    /** at most 50 */
    names: string[];
}

export type Inspection = {[name: string]: unknown};

/** A file that stays as it is. */
export interface FileRefused {
    id: string;
    reason: string;
    /** another file has its place */
    taken: boolean;
}

/** What became of files; each was changed whole, or not at all. */
export interface FilesChanged {
    /** id of a file before and after; the latter is empty if it is deleted */
    changed: [string, string][];
    refused: FileRefused[];
    /** key that takes it back, while the web UI runs; empty if nothing can be taken back */
    undo: string;
}

/** A change of the notes on several files. */
export interface FilesNoted {
    /** at most 500 */
    ids: string[];
    /** tags that each of them gets, beside its own */
    add?: string[];
    /** tags that none of them keeps */
    remove?: string[];
    rating?: number;
}

/** Where files are to be, or what they are to be called. */
export interface FilesMoved {
    /** at most 500 */
    ids: string[];
    /** path below a LoRA folder; made if there is none */
    folder?: string;
    /** new name of a single file, without suffix */
    name?: string;
    /** new name of each file; a file that cannot have it stays */
    names?: string[];
    /** give a number to a name that is taken; otherwise its file stays */
    number?: boolean;
}

/** Files that something is done with. */
export interface FilesChosen {
    /** at most 500 */
    ids: string[];
}

/** A change of files that is taken back. */
export interface ChangeUndone {
    /** key from the answer to the change */
    undo: string;
}

/** One file of the trash. */
export interface DeletedLora {
    /** for the routes of the trash */
    id: string;
    name: string;
    /** where it was */
    folder: string;
    /** bytes, with the files beside it */
    size: number;
    /** seconds since 1970 */
    deleted: number;
}

/** The deleted files, the latest first. */
export interface Trash {
    files: DeletedLora[];
}

/** The part of a file in one block of the model. */
export interface CheckBlock {
    component: string;
    /** as block weights name it; empty for layers in no block */
    block: string;
    layers: number;
    /** of the energy, from 0 to 1 */
    share: number;
    /** the largest singular value of its layers */
    spectral: number;
    /** the norm divided by that of the model's weights; null where they were not read */
    relative: number | null;
    /** the rank that has 90% of the energy of each layer */
    rank_90: number;
    rank_99: number;
}

/** A range that others give for a measure. */
export interface PublishedRange {
    measure: string;
    low: number | null;
    high: number;
    source: string;
    address: string;
}

/** A verdict of the doctor on a file. */
export interface CheckVerdict {
    /** the same in all versions; docs/doctor.md lists them */
    name: string;
    /** whether it counts numbers of the file; else it is a hint */
    sure: boolean;
    /** the values of its measure, and of what to do */
    numbers: {[name: string]: number};
    /** blocks, or text encoders, to weaken */
    blocks: string[];
    /** that it judges, of `standings` */
    figure: string;
    /** what others give for its measure */
    published: PublishedRange | null;
    /** measure, value, what to do, and the range that others give */
    text: string;
    /** layers or keys, the first 20 */
    layers: string[];
    /** layers or keys in all */
    count: number;
}

/** What the doctor says of a file; docs/doctor.md explains the measures. */
export interface FileCheck {
    norm: number;
    /** the norm divided by that of the model's weights; null where they were not read */
    relative: number | null;
    /** the largest */
    rank: number;
    /** the rank that has 90% of the energy of each layer */
    rank_90: number;
    rank_99: number;
    /** the share of each in the energy */
    components: {[name: string]: number};
    blocks: CheckBlock[];
    /** ranks, and the share of the energy that is left at each */
    kept: [number, number][];
    /** the share of each direction in the energy of all layers, the strongest 64 */
    spectrum: number[];
    /** what the header says of the training */
    trained: {[name: string]: string};
    /** layers that cannot be measured without the model, by kind */
    unmeasured: {[name: string]: number};
    /** why parts of a folder that PEFT saved component by component are not measured */
    faults: string[];
    verdicts: CheckVerdict[];
}

/** Where a figure of a file is among the files of its family that were read for copies. */
export interface Standing {
    others: number;
    /** of these */
    smaller: number;
    same: number;
}

/** What the doctor says of a file, or how far it is. */
export interface CheckedFile {
    /** layers */
    done: number;
    /** of the whole file; 0 until they are counted */
    layers: number;
    /** null until it is done */
    result: FileCheck | null;
    /** by figure, such as `norm`; empty until it was read, see `copies` */
    standings: {[name: string]: Standing};
}

/** Two files in one band of blocks; `..._by_chance` is what random changes have. */
export interface CheckPair {
    /** positions in `ids` */
    files: [number, number];
    component: string;
    /** such as IN00 to IN05 */
    band: string;
    /** that both change */
    layers: number;
    relation: "reinforce" | "cancel" | "collide" | "independent";
    /** 1 for the same change, -1 for the opposite one */
    cosine: number;
    /** its standard deviation */
    cosine_by_chance: number;
    /** of the layers, each of which counts the same */
    mean_cosine: number;
    /** the share of the directions written to that both use */
    outputs: number;
    outputs_by_chance: number;
    /** the share of the directions read from that both use */
    inputs: number;
    inputs_by_chance: number;
}

/** What files do to each other at their strengths and block weights. */
export interface FilesTogether {
    /** of their sum */
    norm: number;
    /** the norm of each; 0 where only the model's weights tell it */
    alone: number[];
    /** how much of each is left in the sum, along its own change: 1 is all, 0 nothing */
    left: number[];
    /** on all strengths, at which the sum has the norm of the strongest file alone */
    factor: number;
    /** factors at which the sum leaves half of each file; null if none do */
    alive: number[] | null;
    pairs: CheckPair[];
}

/** What files do to each other, or how far that is. */
export interface CheckedStack {
    /** layers */
    done: number;
    /** of the model; 0 until they are counted */
    layers: number;
    ids: string[];
    /** of the denoiser; of a schedule, the value farthest from 0 */
    strengths: number[];
    /** as asked for */
    tags: string;
    /** what the tags have that the result does not count */
    uncounted: ("schedule" | "region" | "passes" | "prompt" | "images" | "rule" | "random")[];
    /** null until it is done */
    result: FilesTogether | null;
}

/** A file that cannot be compared. */
export interface LeftOut {
    id: string;
    reason: string;
}

/** A file of a group of copies. */
export interface CopiedFile {
    id: string;
    /** of its tensors, such as float16 */
    precisions: string[];
    /** id of the file that it is compared with; null of the first of the group */
    other: string | null;
    alike: "same" | "precision" | "rank" | "scaled" | "resized" | "near" | "epoch" | null;
    /** of its training until it was saved, if its header tells */
    steps: number | null;
    /** 1 for the same change */
    cosine: number;
    /** it is about this times the other file */
    factor: number;
}

/** A file that is the sum of two others. */
export interface MergedFile {
    id: string;
    /** ids */
    parents: [string, string];
    strengths: [number, number];
    /** the share of its energy that they do not explain */
    left: number;
}

/** Files that are copies of others, as far as they are compared. */
export interface Copies {
    /** whether files are being read or compared */
    running: boolean;
    /** files that are read */
    done: number;
    total: number;
    /** files that cannot be compared */
    left_out: LeftOut[];
    /** of this page; the first of a group is the one to keep */
    groups: CopiedFile[][];
    /** groups on all pages */
    found: number;
    per_page: number;
    /** ids of the first of each group, on all pages */
    firsts: string[];
    /** ids of the others */
    others: string[];
    /** ids of the files whose training wrote a later file, which is here, too */
    superseded: string[];
    /** files that are sums of two others */
    merges: MergedFile[];
}

/** A site that may be asked. */
export interface OnlineSite {
    key: string;
    name: string;
    /** the one that is asked */
    host: string;
    /** whether the environment has the user's key; it is never told */
    token: boolean;
    /** the environment variable with the key */
    token_variable: string;
}

/** A file that was looked up, if it has a newer version or something failed. */
export interface OnlineFile {
    id: string;
    state: "newer" | "failed";
    reason: string;
}

/** The latest look-up or download. */
export interface OnlineJob {
    id: string;
    kind: "lookup" | "download" | "newer";
    running: boolean;
    cancelled: boolean;
    /** why it ended early; empty if it did not */
    problem: string;
    /** files, or bytes of a download */
    done: number;
    /** 0 if a site does not tell it */
    total: number;
    /** bytes of the file that is downloaded */
    there: number;
    /** all bytes of that file; 0 if a site does not tell it */
    size: number;
    /** files that a site knows, those with a newer version too; newer versions that were downloaded */
    found: number;
    unknown: number;
    /** the first 500 */
    files: OnlineFile[];
    /** id of the downloaded one */
    file: string | null;
    /** of the downloaded one */
    name: string;
    /** what is missing beside the downloaded one; empty for nothing */
    note: string;
}

/** Whether sites may be asked, and the latest job. */
export interface Online {
    on: boolean;
    sites: OnlineSite[];
    /** that a file may be downloaded into */
    folders: string[];
    job: OnlineJob | null;
}

/** The setting "Look up and download LoRA online". */
export interface OnlineWanted {
    on: boolean;
}

/** Files to look up. */
export interface LookUpWanted {
    /** empty for all files */
    ids: string[];
    /** where a file is from; without it, its hash is asked for */
    page?: string;
}

/** A file to download. */
export interface DownloadWanted {
    /** of a model or a file on Civitai or Hugging Face */
    page: string;
    /** one of `folders` */
    folder?: string;
    /** of the file; without it, the site's */
    name?: string;
}

/** Files whose newer versions are downloaded. */
export interface NewerWanted {
    /** files for which the last look-up told of a newer version */
    ids: string[];
}

/** A family of models, as a report names it. */
export interface Family {
    name: string;
    title: string;
    sure: boolean;
}

/** The outcome of one tag in the latest picture. */
export interface Outcome {
    name: string;
    /** the name in the prompt, or the whole text of a tag that cannot be read */
    asked: string;
    /** where the tag is written */
    where: "prompt" | "negative" | "always";
    /** of the tag in its prompt, or of the entry of the stack, from 0 */
    number: number;
    /** the text between `<lora:` and `>` */
    written: string;
    state: "applied" | "partly" | "waiting" | "none" | "failed" | "missing" | "handed";
    /** why the tag is not applied as written; empty if it is */
    reason: string;
    /** what to do about that */
    advice: string;
    /** layers of the file that act */
    hit: number;
    layers: number | null;
    /** layers of the model */
    changed: number;
    bytes: number;
    /** time to read the file and to find its layers */
    seconds: number;
    warning: string;
    /** what the place of the tag in its prompt does not do */
    hint: string;
    format: string | null;
    family: Family | null;
    base_model: string | null;
    model: Family | null;
    kinds: {[name: string]: number};
    ranks: number[] | null;
    /** keys without effect, by reason */
    unused: {[name: string]: string[]};
    causes: {[name: string]: string};
    details: {[name: string]: string};
    images: number[];
    always_on: boolean;
}

/** How far a file is. */
export interface LayersDone {
    /** layers */
    done: number;
    /** of the whole file */
    layers: number;
}

/** The progress of reading the folders, and the revision of the list. */
export interface CatalogState {
    running: boolean;
    done: number;
    total: number;
    revision: number;
}

/** The latest picture, and what changes while nobody asks. */
export interface State {
    version: string;
    host: string;
    enabled: boolean;
    /** the web UI applies the tags itself where Remora does not */
    own_lora: boolean;
    default_multiplier: number;
    /** brackets around tags mean something */
    grammar: boolean;
    /** # in a prompt begins a comment */
    comments: boolean;
    /** AND divides prompts into parts of their own rows */
    parts: boolean;
    /** family of the loaded model */
    model: string | null;
    images: number;
    loras: Outcome[];
    /** layers */
    merged: number;
    live: {[name: string]: number};
    /** sentences about the picture that are not about one of its `loras` */
    notes: string[];
    conflicts: string[];
    /** the LoRA of a picture that are combined by a rule now */
    combining: LayersDone | null;
    /** pictures made in this session */
    pictures: number;
    catalog: CatalogState;
    /** the present ETag of `GET stack`, without quotes */
    stack: string;
}

/** The setting "Tags obey the brackets around them". */
export interface GrammarWanted {
    on: boolean;
}

/** One LoRA that is always on. */
export interface StackEntry {
    name: string;
    on: boolean;
    unet: number;
    text_encoder: number;
    /** other fields of a tag, such as lbw=OUTALL:stop=10 */
    more: string;
}

/** The list "Always on". */
export interface Stack {
    version: number;
    always_on: boolean;
    entries: StackEntry[];
    problem: string;
}

/** The same as it is sent: a missing field has its default. */
export interface StackEntryWanted {
    name: string;
    on?: boolean;
    unet?: number;
    text_encoder?: number;
    more?: string;
}

/** A new list "Always on". */
export interface StackWanted {
    version?: number;
    always_on?: boolean;
    entries?: StackEntryWanted[];
}

/** One LoRA of one picture. */
export interface UsedLora {
    /** id of the file; null without one */
    id: string | null;
    /** as in the tag */
    name: string;
    /** such as 0.8 or schedule */
    strength: string;
    state: "applied" | "partly" | "waiting" | "none" | "failed" | "missing" | "handed";
    reason: string;
    always_on: boolean;
}

/** One picture of this session. */
export interface MadePicture {
    id: number;
    /** seconds since 1970 */
    time: number;
    seed: number;
    thumbnail: boolean;
    loras: UsedLora[];
}

/** The pictures of this session, the latest first. */
export interface Pictures {
    /** pictures made in this session; the latest 200 are kept */
    count: number;
    /** pictures that fit the query */
    found: number;
    pictures: MadePicture[];
}

/** One LoRA of one picture, by its parameters text. */
export interface OutputLora {
    /** id of the file; null without one */
    id: string | null;
    /** as in the tag */
    name: string;
    /** hex digits; empty if the text has none */
    hash: string;
    /** as in the tag, such as 0.8 or 0.8:stop=10; empty if the tag has none */
    strength: string;
}

/** One picture in the output folders. */
export interface OutputPicture {
    id: number;
    /** seconds since 1970 */
    time: number;
    /** path below its output folder */
    file: string;
    width: number;
    height: number;
    seed: number | null;
    /** the first 1,000 characters */
    prompt: string;
    loras: OutputLora[];
}

/** Pictures in the output folders, the latest first. */
export interface OutputPictures {
    scan: Scan;
    problem: string;
    /** pictures that are read */
    total: number;
    /** pictures that fit the query */
    found: number;
    /** 60 of them, or `most`, behind the first `skip` */
    pictures: OutputPicture[];
}

/** One LoRA, and the pictures that used it. */
export interface CountedLora {
    /** id of the file; null without one */
    id: string | null;
    name: string;
    pictures: number;
    /** time of the latest of them, in seconds since 1970 */
    latest: number;
    /** in that one, as in the tag; empty if the tag has none */
    strength: string;
    /** the lowest and the highest number; null without any */
    strengths: [number, number] | null;
}

/** All LoRA of the pictures, the most used first. */
export interface CountedLoras {
    scan: Scan;
    problem: string;
    loras: CountedLora[];
}

/** One LoRA of a recipe. */
export interface RecipeLora {
    /** as in the tag */
    name: string;
    /** as in the tag; empty if the tag has none */
    strength: string;
    /** id of the file; null without one */
    id: string | null;
    /** how the file was found; `other` is a file of this name that has another hash */
    by: "hash" | "tensors" | "name" | "other" | "";
}

/** The prompt, settings, model and LoRA of a picture or a preset. */
export interface Recipe {
    /** of the preset; empty without one */
    name: string;
    /** path below the output folder, if the picture is there */
    file: string;
    /** the parameters text as it is written */
    text: string;
    /** the same with the names that the LoRA have here */
    own: string;
    /** the tags of its LoRA, under the names they have here */
    tags: string;
    prompt: string;
    negative: string;
    settings: {[name: string]: string};
    model: string;
    loras: RecipeLora[];
    /** a LoRA may be found later: files are still being read */
    searching: boolean;
}

/** A saved list of LoRA. */
export interface Preset {
    name: string;
    /** one line for each LoRA: its tag, then its trigger words */
    text: string;
    /** changes if the picture changes; empty without a picture */
    thumbnail: string;
    /** the parameters text of a picture that was made with it; may be empty */
    parameters: string;
}

/** All presets. */
export interface Presets {
    presets: Preset[];
    problem: string;
}

/** A text to import. */
export interface Text {
    text: string;
}

/** A preset to save. */
export interface PresetWanted {
    text: string;
    /** the name that it had */
    former?: string;
    /** the parameters text of a picture; without it, the former one stays */
    parameters?: string;
}

/** One preset as a file, which `POST presets` and `POST recipe` read. */
export interface PresetFile {
    /** version, 1 */
    remora_preset: number;
    name: string;
    /** one line for each LoRA: its tag, then its trigger words */
    text: string;
    /** WebP as base64; may be empty */
    thumbnail: string;
    /** the parameters text of a picture */
    parameters?: string;
    /** by name, what finds a LoRA by its tensors, as base64 */
    sketches?: {[name: string]: string};
}

/** A block of the loaded model. */
export interface Block {
    id: string;
    title: string;
}

/** A list of weights that the model takes. */
export interface Layout {
    length: number;
    ids: string[];
}

/** A saved list of block weights. */
export interface BlockPreset {
    name: string;
    /** numbers, R, U or X, separated by commas */
    values: string;
    /** saved by the user */
    own: boolean;
}

/** The blocks of the loaded model, and what may weigh them. */
export interface Blocks {
    /** in the order of its first layout; empty without a model */
    blocks: Block[];
    /** by length */
    layouts: Layout[];
    presets: BlockPreset[];
    /** names for lbwe= */
    rules: string[];
    /** what each of them does */
    about_rules: {[name: string]: string};
    problem: string;
}

/** A list of block weights to save. */
export interface BlockPresetWanted {
    name: string;
    values: string;
}

/** A part of the picture. */
export interface Region {
    /** name for mask= */
    name: string;
    /** saved by the user */
    own: boolean;
    /** share of the picture, from 0 to 1 */
    share: number;
    /** grey PNG as base64, white where a LoRA acts */
    picture: string;
}

/** All regions. */
export interface Regions {
    regions: Region[];
    problem: string;
}

/** A region to save. */
export interface RegionWanted {
    name: string;
    /** a picture file as base64, or as a data URL, white where a LoRA acts */
    picture: string;
}

/** A grid of pictures that differ only in their LoRA. */
export interface Comparison {
    id: string;
    columns: string[];
    rows: string[];
    /** row by row, like `done`; null is the difference of the two before it */
    prompts: (string | null)[];
    done: boolean[];
    running: boolean;
    cancelled: boolean;
    problem: string;
    /** cell */
    at: number;
    fraction: number;
    /** of the first row; each row of a sheet has the next one */
    seed: number;
}

/** The latest comparison. */
export interface Compare {
    possible: boolean;
    samplers: string[];
    comparison: Comparison | null;
    /** prompts for a sheet that the loaded model understands */
    examples: string[];
}

/** A comparison to make. */
export interface CompareWanted {
    prompt: string;
    /** names of LoRA in the prompt */
    names: string[];
    mode?:
        | "strengths"
        | "alone"
        | "against"
        | "without"
        | "combinations"
        | "blocks"
        | "regions"
        | "schedules"
        | "sheet"
        | "instead";
    /** strengths for the modes that compare strengths; texts such as OUTALL, left or stop=10 for blocks, regions and schedules, with None for none; for a sheet, what the prompt of each row begins with; for instead, the name of one LoRA that is in the place of all `names` */
    values?: number[] | string[];
    negative_prompt?: string;
    steps?: number;
    sampler?: string;
    schedule?: string;
    cfg_scale?: number;
    width?: number;
    height?: number;
    /** -1: one random seed for all; rows of a sheet count from it */
    seed?: number;
    /** id of the latest comparison: only rows are added, with its settings */
    grows?: string;
}

/** One layer of a saved file. */
export interface SavedLayer {
    component: string;
    name: string;
    /** null for a whole difference, 0 for a layer that is left out */
    rank: number | null;
    /** as a share of its change */
    error: number;
}

/** A saved file, or a preview of one. */
export interface SavedLora {
    /** of the file; empty for a preview */
    id: string;
    /** as in <lora:name:1>; empty for a preview */
    name: string;
    path: string;
    bytes: number;
    layers: number;
    /** lowest and highest; null where no layer has one */
    ranks: [number, number] | null;
    /** layers of which the whole difference is saved */
    whole: number;
    /** layers that matter too little */
    left_out: number;
    /** of all layers, as a share of their change; for a preview, without rounding */
    error: number;
    /** the layer of the largest error */
    worst: string;
    worst_error: number;
    /** of what the layers make of the inputs that were taken; null without them */
    output_error: number | null;
    /** the layer of the largest error first */
    each: SavedLayer[];
    notes: string[];
    /** its duration; of a preview, the estimated duration of saving */
    seconds: number;
}

/** A file that is saved, or a preview that is made. */
export interface SaveJob {
    id: string;
    preview: boolean;
    /** layers */
    done: number;
    /** of all LoRA; 0 until they are counted */
    layers: number;
    running: boolean;
    cancelled: boolean;
    problem: string;
    /** null until it is done */
    result: SavedLora | null;
}

/** The latest job. */
export interface Save {
    job: SaveJob | null;
    /** of the layers of the loaded model, which tell the error of outputs: `wanted` in the next picture, or `taken` */
    inputs: "" | "wanted" | "taken";
}

/** The folders that a file may be saved in, and the models that it may be made of. */
export interface SaveChoices {
    /** names of the models on disk that the web UI lists, the loaded one first */
    models: string[];
    /** below the LoRA folders; an empty text is the first LoRA folder */
    folders: string[];
}

/** A file to save or to preview. */
export interface SaveWanted {
    /** the LoRA of tags as one file (usual), a model with them in its weights, or what `tuned` has more than `model` */
    what?: "file" | "model" | "difference";
    /** one of `models`: the LoRA are put into a copy beside it, or the base */
    model?: string;
    /** one of `models` */
    tuned?: string;
    /** of the weights of a model */
    rounding?: "nearest" | "stochastic";
    /** of the file, without suffix; a preview needs none */
    name?: string;
    /** one of `folders`, or another one below the LoRA folders */
    folder?: string;
    /** such as <lora:zorp:0.8>; without it, the tags of the latest picture */
    tags?: string[];
    /** the rule; without it, the one of the tags, as `combine=ties` */
    how?:
        | "sum"
        | "svd"
        | "linear"
        | "ties"
        | "ties_svd"
        | "dare_linear"
        | "dare_linear_svd"
        | "dare_ties"
        | "dare_ties_svd"
        | "magnitude_prune"
        | "magnitude_prune_svd"
        | "orthogonal";
    /** the share of the numbers that ties, dare and magnitude_prune keep */
    density?: number | null;
    /** of the numbers that dare and the stochastic rounding draw */
    seed?: number;
    /** of the layers */
    kind?: "lora" | "lokr";
    /** rows and columns of the first matrix of a LoKr, at most */
    factor?: number | null;
    /** the rank to which lower ones are filled up with zeros */
    pad?: number | null;
    /** whether the strengths of the negative prompt are saved, where `half=` makes them differ */
    negative?: boolean | null;
    /** of the keys */
    spelling?: "kohya" | "diffusers" | "comfy";
    dtype?: "float32" | "float16" | "bfloat16";
    /** the largest of a layer */
    rank?: number | null;
    /** the largest of the file, in bytes */
    size?: number | null;
    /** the largest of all layers, as 0.05 */
    error?: number | null;
    /** of which the strengths are saved, from 0, where they differ from step to step */
    step?: number | null;
    /** of the picture, for `step`; 20 without it */
    steps?: number;
    /** whether a file of that name is replaced */
    replace?: boolean;
    /** whether the file gets the latest picture */
    picture?: boolean;
    /** write nothing */
    preview?: boolean;
}

/** Whether inputs of layers are taken in the next picture. */
export interface InputsWanted {
    on: boolean;
}

/** The answers as JSON, by path. */
export interface Answers {
    loras: Loras;
    refresh: Loras;
    lora: LoraDetails;
    picture: LoraDetails;
    resolve: Meanings;
    inspect: Inspection;
    files: FilesChanged;
    "files/move": FilesChanged;
    "files/delete": FilesChanged;
    "files/restore": FilesChanged;
    "files/undo": FilesChanged;
    trash: Trash;
    check: CheckedFile;
    "check/stack": CheckedStack;
    copies: Copies;
    online: Online;
    "online/lookup": Online;
    "online/download": Online;
    "online/newer": Online;
    state: State;
    grammar: State;
    stack: Stack;
    pictures: Pictures;
    outputs: OutputPictures;
    "outputs/loras": CountedLoras;
    "outputs/picture": Recipe;
    presets: Presets;
    preset: Presets;
    "preset/thumbnail": Presets;
    recipe: Recipe;
    "recipe/picture": Recipe;
    "preset/recipe": Recipe;
    "preset/file": PresetFile;
    blocks: Blocks;
    "blocks/presets": Blocks;
    regions: Regions;
    compare: Compare;
    save: Save;
    "save/choices": SaveChoices;
    "save/inputs": Save;
}
