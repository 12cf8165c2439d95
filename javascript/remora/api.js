// The server's `/remora/v1`.

/** What went wrong, as one sentence. */
export class ApiError extends Error {
    constructor(message, status) {
        super(message);
        this.status = status;
    }
}

/** Asks the server. */
export class Api {
    constructor(base) {
        this.base = `${base}/remora/v1/`;
        this.authorization = null; // of users who were asked for it; forgotten with the page
    }

    logIn(user, password) {
        const bytes = new TextEncoder().encode(`${user}:${password}`);
        this.authorization = `Basic ${btoa(String.fromCharCode(...bytes))}`;
    }

    get(path) {
        return this.ask("GET", path);
    }

    /** Send JSON, or a Blob as it is; returns what the answer's JSON says. */
    async ask(method, path, body) {
        const answer = await this.send(method, path, body);
        let data = null;
        try {
            data = await answer.json();
        } catch {
            data = null; // a proxy's page, say
        }
        if (answer.ok && data !== null) return data;
        const detail = data && typeof data.detail === "string" ? data.detail : "";
        throw new ApiError(detail || `The web UI answered ${answer.status} to ${method} ${path}.`, answer.status);
    }

    async text(path) {
        const answer = await this.send("GET", path);
        if (!answer.ok) throw new ApiError(`The web UI answered ${answer.status} to GET ${path}.`, answer.status);
        return answer.text();
    }

    async send(method, path, body) {
        const headers = {Accept: "application/json"};
        const raw = body instanceof Blob;
        if (body !== undefined && !raw) headers["Content-Type"] = "application/json";
        if (this.authorization) headers.Authorization = this.authorization;
        try {
            return await fetch(this.base + path, {
                method, headers, credentials: "same-origin", cache: "no-cache",
                body: body === undefined || raw ? body : JSON.stringify(body),
            });
        } catch {
            throw new ApiError("The web UI does not answer.", 0);
        }
    }

    /** The address of a picture; where a password was asked for, the browser would not send it by itself. */
    async pictureAt(path) {
        if (!this.authorization) return this.base + path;
        const answer = await this.send("GET", path);
        return answer.ok ? URL.createObjectURL(await answer.blob()) : "";
    }
}

/** A part of a query. */
export const query = (values) => new URLSearchParams(values).toString();
