// What the server is asked: javascript/remora/api.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";

import {Api} from "../../javascript/remora/api.js";

const {fetch} = globalThis;
afterEach(() => {
    globalThis.fetch = fetch;
});

/**
 * Return the type that a body is sent with.
 * @param {object} [body]
 */
async function typeOf(body) {
    /** @type {Headers | undefined} */
    let sent;
    globalThis.fetch = async (_, init) => {
        sent = new Headers(init?.headers);
        return new Response("{}");
    };
    await new Api("").ask("PUT", "picture?id=1", body);
    return sent?.get("content-type") ?? null;
}

test("a body is sent with a type that the server takes", async () => {
    assert.equal(await typeOf({name: 1}), "application/json");
    assert.equal(await typeOf(new Blob(["x"], {type: "image/webp"})), "image/webp");
    // of a file whose name tells nothing, the browser knows no type
    assert.equal(await typeOf(new Blob(["x"])), "image/unknown");
    assert.equal(await typeOf(new Blob(["x"], {type: "text/plain"})), "image/unknown");
    assert.equal(await typeOf(), null);
});
