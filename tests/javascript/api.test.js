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

/** @typedef {{tag: string | null, answer: (tag: string, status?: number) => void}} Asked */

/**
 * Have requests wait until the test answers them; return those that were sent.
 * @returns {Asked[]}
 */
function asked() {
    /** @type {Asked[]} */
    const found = [];
    globalThis.fetch = (_, init) =>
        new Promise((resolve) => {
            const tag = new Headers(init?.headers).get("if-match");
            found.push({
                tag,
                answer: (own, status = 200) => resolve(new Response("{}", {status, headers: {ETag: `"${own}"`}})),
            });
        });
    return found;
}

const turn = () => new Promise((resolve) => setTimeout(resolve));

test("of two changes of one thing, the second is sent with the tag that the first left", async () => {
    const sent = asked();
    const api = new Api("");
    const first = api.ask("PATCH", "lora?id=1", {rating: 4});
    const second = api.ask("PATCH", "lora?id=1", {favourite: true});
    await turn();
    assert.equal(sent.length, 1);
    sent[0].answer("b");
    await first;
    await turn();
    assert.deepEqual([sent.length, sent[1].tag], [2, '"b"']);
    sent[1].answer("c");
    await second;
    assert.equal(api.changes.size, 0);
});

test("a picture of a file is sent with the tag of what is known of it, and leaves another", async () => {
    const sent = asked();
    const api = new Api("");
    const rated = api.ask("PATCH", "lora?id=1", {rating: 4});
    const shown = api.ask("PUT", "picture?id=1", new Blob(["x"], {type: "image/png"}));
    const noted = api.ask("PATCH", "lora?id=1", {notes: "x"});
    for (const [at, tag] of ["a", "b", "c"].entries()) {
        await turn();
        assert.equal(sent.length, at + 1);
        sent[at].answer(tag);
    }
    await Promise.all([rated, shown, noted]);
    assert.deepEqual([sent[1].tag, sent[2].tag], ['"a"', '"b"']);
});

test("after a change that is refused the next is sent, and changes of other things do not wait", async () => {
    const sent = asked();
    const api = new Api("");
    const refused = assert.rejects(api.ask("PATCH", "lora?id=1", {rating: 4}));
    const next = api.ask("PATCH", "lora?id=1", {rating: 5});
    const other = api.ask("PATCH", "lora?id=2", {rating: 5});
    await turn();
    assert.equal(sent.length, 2);
    sent[0].answer("", 412);
    sent[1].answer("x");
    await refused;
    await turn();
    assert.equal(sent.length, 3);
    sent[2].answer("y");
    await Promise.all([next, other]);
});
