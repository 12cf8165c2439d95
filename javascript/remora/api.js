// The server's `/remora/v1`.

/**
 * @import {Answers} from "../api.d.ts"
 *
 * @typedef {keyof Answers | `${keyof Answers}?${string}`} Path
 */

import {t, translated} from "./words.js";

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
     * @param {string} [detail] the words of the server, which are English
     */
    constructor(message, status, detail = message) {
        super(message);
        this.status = status;
        this.detail = detail;
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
        throw new ApiError(translated(detail) || unexpected(answer, `${method} ${path}`), answer.status, detail);
    }

    /** @param {string} path */
    async text(path) {
        const answer = await this.send("GET", path);
        if (!answer.ok) throw new ApiError(unexpected(answer, `GET ${path}`), answer.status);
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
            throw new ApiError(t("server.lost"), 0);
        }
    }

    /**
     * Return the address of a picture; where a password was asked for, the browser would not send it by itself. The
     * picture stays in memory until `forget` is called with the address.
     * @param {string} path
     */
    async pictureAt(path) {
        return this.authorization ? this.fileAt(path) : this.base + path;
    }

    /**
     * Return the address of a file in memory, which stays there until `forget` is called with it.
     * @param {string} path
     */
    async fileAt(path) {
        const answer = await this.send("GET", path);
        if (!answer.ok) throw new ApiError(unexpected(answer, `GET ${path}`), answer.status);
        return URL.createObjectURL(await answer.blob());
    }

    /**
     * Free the memory of a picture that is no longer shown.
     * @param {string} address as `pictureAt` returned it
     */
    forget(address) {
        if (address.startsWith("blob:")) URL.revokeObjectURL(address);
    }
}

/**
 * @param {Response} answer
 * @param {string} request
 */
const unexpected = ({status}, request) => t("server.status", {status: String(status), request});

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
