// The server's `/remora/v1`.

/**
 * @typedef {{running: boolean, done: number, total: number}} Scan
 *
 * @typedef {object} Lora
 * One file of the library.
 * @property {string} id
 * @property {string} name as in `<lora:name:0.8>`
 * @property {string} alias
 * @property {string} file path below its folder, without suffix
 * @property {string} folder
 * @property {boolean} read false while the server has not read its header
 * @property {boolean} readable
 * @property {string} reason why it cannot be used
 * @property {string | null} family a key of `families`
 * @property {string | null} base_model
 * @property {string} kind
 * @property {[low: number, high: number] | null} rank
 * @property {number} layers
 * @property {string} format
 * @property {number} size bytes
 * @property {number} mtime seconds since 1970, as `added` and `used`
 * @property {string} words trigger words, as they are put into a prompt
 * @property {string} negative words for the negative prompt
 * @property {string[]} tags
 * @property {string} notes
 * @property {number} rating
 * @property {boolean} favourite
 * @property {number | null} strength the preferred one
 * @property {number | null} alpha the user's, in place of the file's own
 * @property {string} captions
 * @property {number} added
 * @property {number} used 0 is never
 * @property {number} uses
 * @property {string} picture changes with the picture; empty where there is none
 *
 * @typedef {object} More
 * @property {string} path
 * @property {string} description
 * @property {string[]} problems
 * @property {{[kind: string]: number}} kinds
 * @property {{[name: string]: string}} training
 * @property {[tag: string, count: number][]} training_tags
 * @property {Distilled | null} distilled null unless it is a known distilled LoRA
 * @property {boolean} scale_is_guess nothing tells the file's alpha, and the user gave none
 * @property {string[]} sidecars
 * @property {string} hash empty where it was not made yet
 *
 * @typedef {Lora & More} LoraDetails
 *
 * @typedef {object} Distilled
 * The settings that a distilled LoRA was made for; of two numbers the least and the most.
 * @property {string} method
 * @property {[number, number]} steps
 * @property {[number, number]} cfg
 * @property {string} sampler
 * @property {string} scheduler
 * @property {number | null} shift
 *
 * @typedef {{name: string, title: string, fits: boolean, reason: string}} FamilyFit
 *
 * @typedef {object} Loras
 * @property {number} revision
 * @property {boolean} whole false where only changes are told
 * @property {Lora[]} loras
 * @property {string[]} gone ids
 * @property {{[name: string]: FamilyFit}} families
 * @property {Scan} scan
 * @property {string} problem
 *
 * @typedef {{id: string | null, name?: string, problem: string, note: string, candidates: string[]}} Meaning
 * The file that a name in a prompt means, where no file has this name.
 *
 * @typedef {{name: string, on: boolean, unet: number, text_encoder: number, more: string}} StackEntry
 * @typedef {{version: number, always_on: boolean, entries: StackEntry[], problem: string}} StackOnDisk
 *
 * @typedef {{name: string, title: string, sure: boolean}} Family
 *
 * @typedef {object} LoraOutcome
 * The outcome of one LoRA in the latest picture.
 * @property {string} name
 * @property {string} asked as the prompt had it: the name, or all that a tag says which cannot be read
 * @property {"applied" | "partly" | "none" | "failed" | "missing"} state
 * @property {string} reason
 * @property {number} hit layers of the file that act
 * @property {number | null} layers
 * @property {number} bytes
 * @property {number} seconds
 * @property {string} warning
 * @property {string | null} format
 * @property {Family | null} family
 * @property {string | null} base_model
 * @property {{[kind: string]: number}} kinds
 * @property {number[] | null} ranks
 * @property {{[reason: string]: string[]}} unused
 * @property {{[key: string]: string | undefined}} details
 * @property {boolean} always_on
 *
 * @typedef {object} ServerState
 * @property {boolean} enabled
 * @property {number} default_multiplier
 * @property {boolean} grammar brackets around tags mean something
 * @property {boolean} comments # in a prompt begins a comment
 * @property {boolean} parts AND divides prompts into parts of their own rows
 * @property {string | null} model family of the loaded model
 * @property {LoraOutcome[]} loras
 * @property {string[]} notes
 * @property {string[]} conflicts
 * @property {number} pictures made in this session
 * @property {Scan & {revision: number}} catalog
 * @property {string} stack the tag of `stack`, as `Api.tags` has it
 *
 * @typedef {object} UsedLora
 * One LoRA of one picture.
 * @property {string | null} id of its file
 * @property {string} name as in its tag
 * @property {string} strength
 * @property {LoraOutcome["state"]} state
 * @property {string} reason
 * @property {boolean} always_on
 *
 * @typedef {{id: number, time: number, seed: number, thumbnail: boolean, loras: UsedLora[]}} MadePicture
 * One picture of this session.
 *
 * @typedef {{name: string, text: string, thumbnail: string}} Preset
 * @typedef {{presets: Preset[], problem: string}} PresetList
 *
 * @typedef {{length: number, ids: string[]}} Layout
 * A list of weights that the model takes.
 *
 * @typedef {{name: string, values: string, own: boolean}} BlockPreset
 *
 * @typedef {object} Blocks
 * @property {{id: string, title: string}[]} blocks
 * @property {Layout[]} layouts
 * @property {BlockPreset[]} presets
 * @property {string[]} rules
 * @property {string} problem
 *
 * @typedef {{name: string, own: boolean, share: number, picture: string}} Region
 * A part of the picture; `picture` is a grey PNG as base64.
 *
 * @typedef {object} Comparison
 * @property {string} id
 * @property {string[]} columns
 * @property {string[]} rows
 * @property {string[]} prompts row by row, as `done`
 * @property {boolean[]} done
 * @property {boolean} running
 * @property {boolean} cancelled
 * @property {string} problem
 * @property {number} at cell
 * @property {number} fraction
 * @property {number} seed
 *
 * @typedef {{possible: boolean, samplers: string[], comparison: Comparison | null}} CompareState
 *
 * @typedef {{
 *     "loras": Loras,
 *     "refresh": Loras,
 *     "lora": LoraDetails,
 *     "picture": LoraDetails,
 *     "resolve": {names: {[name: string]: Meaning}},
 *     "state": ServerState,
 *     "grammar": ServerState,
 *     "stack": StackOnDisk,
 *     "pictures": {count: number, found: number, pictures: MadePicture[]},
 *     "presets": PresetList,
 *     "preset": PresetList,
 *     "preset/thumbnail": PresetList,
 *     "blocks": Blocks,
 *     "blocks/presets": Blocks,
 *     "regions": {regions: Region[], problem: string},
 *     "compare": CompareState,
 * }} Answers
 * The answers of the server, by path.
 *
 * @typedef {keyof Answers | `${keyof Answers}?${string}`} Path
 */

/**
 * @template {Path} P
 * @typedef {P extends keyof Answers ? Answers[P]
 *     : P extends `${infer Name extends keyof Answers}?${string}` ? Answers[Name] : never} AnswerTo
 */

/** What is answered to a change of something that another page or program has changed meanwhile. */
export const CHANGED = 412;

/** What went wrong, as one sentence. */
export class ApiError extends Error {
    /**
     * @param {string} message
     * @param {number} status of HTTP; 0 where the server does not answer
     */
    constructor(message, status) {
        super(message);
        this.status = status;
    }
}

/** Asks the server. */
export class Api {
    /** @param {string} base the address below which the server's routes are */
    constructor(base) {
        this.base = `${base}/remora/v1/`;
        /** @type {string | null} */
        this.authorization = null; // of users who were asked for it; forgotten with the page
        /** @type {Map<string, string>} */
        this.tags = new Map(); // of what is kept, as this page knows it: the server refuses changes of anything else
        /** @type {Map<string, Promise<unknown>>} */
        this.changes = new Map(); // the last change of each of these that is not answered yet
    }

    /**
     * @param {string} user
     * @param {string} password
     */
    logIn(user, password) {
        const bytes = new TextEncoder().encode(`${user}:${password}`);
        this.authorization = `Basic ${btoa(String.fromCharCode(...bytes))}`;
    }

    /**
     * @template {Path} P
     * @param {P} path
     */
    get(path) {
        return this.ask("GET", path);
    }

    /**
     * Send JSON, or a Blob as it is; return the JSON of the answer. A change of what is not any more as this page knows
     * it is refused with the status CHANGED. Changes of one thing are sent one after the other: each changes what the one
     * before it left.
     * @template {Path} P
     * @param {string} method
     * @param {P} path
     * @param {object} [body]
     * @returns {Promise<AnswerTo<P>>}
     */
    async ask(method, path, body) {
        const kept = keptBy(path);
        if (method === "GET" || !kept) return this.exchange(method, path, body, "");
        const send = () => this.exchange(method, path, body, kept);
        const own = (this.changes.get(kept) ?? Promise.resolve()).then(send, send);
        this.changes.set(kept, own);
        try {
            return await own;
        } finally {
            if (this.changes.get(kept) === own) this.changes.delete(kept);
        }
    }

    /**
     * @template {Path} P
     * @param {string} method
     * @param {P} path
     * @param {object | undefined} body
     * @param {string} changed what is changed, of the things that are kept; empty for none
     * @returns {Promise<AnswerTo<P>>}
     */
    async exchange(method, path, body, changed) {
        const kept = keptBy(path);
        const answer = await this.send(method, path, body, this.tags.get(changed) ?? "");
        let data = null;
        try {
            data = await answer.json();
        } catch {
            data = null; // a proxy's page, say
        }
        if (answer.ok && data !== null) {
            const tag = answer.headers.get("ETag") ?? "";
            if (kept) this.tags.set(kept, tag.replace(/^W\//, "").replaceAll('"', ""));
            return data;
        }
        const detail = data && typeof data.detail === "string" ? data.detail : "";
        throw new ApiError(detail || `The web UI answered ${answer.status} to ${method} ${path}.`, answer.status);
    }

    /** @param {string} path */
    async text(path) {
        const answer = await this.send("GET", path);
        if (!answer.ok) throw new ApiError(`The web UI answered ${answer.status} to GET ${path}.`, answer.status);
        return answer.text();
    }

    /**
     * @param {string} method
     * @param {string} path
     * @param {object} [body]
     * @param {string} [tag] of what is changed
     */
    async send(method, path, body, tag = "") {
        /** @type {{[name: string]: string}} */
        const headers = {Accept: "application/json"};
        const raw = body instanceof Blob;
        // a picture's type is that of its file's name, so there may be none; the server takes no body without one
        if (raw) headers["Content-Type"] = body.type.startsWith("image/") ? body.type : "image/unknown";
        else if (body !== undefined) headers["Content-Type"] = "application/json";
        if (this.authorization) headers.Authorization = this.authorization;
        if (tag) headers["If-Match"] = `"${tag}"`;
        try {
            return await fetch(this.base + path, {
                method,
                headers,
                credentials: "same-origin",
                cache: "no-cache",
                body: body === undefined || raw ? body : JSON.stringify(body),
            });
        } catch {
            throw new ApiError("The web UI does not answer.", 0);
        }
    }

    /**
     * Return the address of a picture; where a password was asked for, the browser would not send it by itself. The
     * picture stays in memory until `forget` is called with the address.
     * @param {string} path
     */
    async pictureAt(path) {
        if (!this.authorization) return this.base + path;
        const answer = await this.send("GET", path);
        return answer.ok ? URL.createObjectURL(await answer.blob()) : "";
    }

    /**
     * Free the memory of a picture that is no longer shown.
     * @param {string} address as `pictureAt` returned it
     */
    forget(address) {
        if (address.startsWith("blob:")) URL.revokeObjectURL(address);
    }
}

/** @type {{[path: string]: string | undefined}} */
const KEPT = {
    stack: "stack",
    presets: "presets",
    preset: "presets",
    "preset/thumbnail": "presets",
    blocks: "blocks",
    "blocks/presets": "blocks",
    regions: "regions",
};

/**
 * Return what the answer to a path tells of, which has the same tag whatever the path is; empty for what is not kept.
 * @param {string} path
 */
function keptBy(path) {
    const [name, values] = path.split("?");
    const ofFile = name === "lora" || name === "picture";
    return ofFile ? `lora?${query({id: new URLSearchParams(values).get("id") ?? ""})}` : (KEPT[name] ?? "");
}

/**
 * Write values as a part of an address.
 * @param {{[name: string]: string | number}} values
 */
export const query = (values) => new URLSearchParams(/** @type {{[name: string]: string}} */ (values)).toString();
