// Requests to the server and the state that is polled: javascript/remora/server.js.

import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {ApiError} from "../../javascript/remora/api.js";
import {leavePage, listOf, lora, openPage, serverState} from "./page.js";

afterEach(leavePage);

const STACK = {version: 1, always_on: true, entries: [], problem: ""};

/**
 * Make a page whose server has a state that the test changes.
 * @param {any[]} [loras]
 */
function polled(loras = []) {
    const counted = {loras: [{id: "id-a", name: "a", pictures: 7, latest: 50}], scan: {running: true}};
    /** @type {{state: any, answers: boolean, counted: any}} */
    const server = {state: serverState(), answers: true, counted};
    const page = openPage({
        routes: {
            "GET state": () => (server.answers ? {data: server.state} : {status: 503, data: {detail: "it starts"}}),
            "GET loras": () => ({data: listOf(loras, {revision: server.state.catalog.revision})}),
            "GET stack": () => ({tag: server.state.stack, data: STACK}),
            "GET outputs/loras": () => ({data: server.counted}),
            "GET pictures": () => ({data: {pictures: []}}),
        },
    });
    /** Return the requests since the last call. */
    const requests = () => page.sent.splice(0).map(({method, path}) => `${method} ${path}`);
    return {...page, server, requests};
}

test("an error of the server is shown until something works", async () => {
    const {tab} = openPage();
    const fails = () => Promise.reject(new ApiError("the disk is full", 507));
    assert.equal(await tab.server.attempt(fails), null);
    assert.deepEqual([tab.state.error, tab.state.login], ["the disk is full", false]);
    tab.set({lost: true});
    assert.equal(await tab.server.attempt(async () => 3), 3);
    assert.deepEqual([tab.state.error, tab.state.lost], ["", false]);
});

test("a server that did not answer a first request is known as lost, and its answer to a poll clears the error", async () => {
    const {tab} = polled();
    await tab.server.attempt(() => Promise.reject(new ApiError("The web UI does not answer.", 0)));
    assert.deepEqual([tab.state.error, tab.state.lost], ["The web UI does not answer.", true]);
    await tab.server.poll();
    assert.deepEqual([tab.state.error, tab.state.lost, tab.state.loaded], ["", false, true]);
});

test("an error of the tab itself is not taken for one of the server", async () => {
    const {tab} = openPage();
    await assert.rejects(
        tab.server.attempt(() => Promise.reject(new TypeError("x is undefined"))),
        TypeError,
    );
    assert.equal(tab.state.error, "");
});

test("a password is asked for where the server wants one, until something works", async () => {
    const {tab} = openPage();
    const refuse = (/** @type {string} */ text, status = 401) =>
        tab.server.attempt(() => Promise.reject(new ApiError(text, status)));
    await refuse("log in on the web UI's page first");
    assert.equal(tab.state.login, false);
    await refuse("the user and password of the API are needed");
    assert.equal(tab.state.login, true);
    await refuse("the disk is full", 507);
    assert.equal(tab.state.login, true);
    await tab.server.attempt(async () => {});
    assert.equal(tab.state.login, false);
});

test("at the start the files, the stack and the state are loaded", async () => {
    const {tab, requests} = polled([lora("a")]);
    await tab.server.start();
    const files = ["GET loras?since=1", "GET stack", "GET state", "GET loras?since=1", "GET outputs/loras"];
    assert.deepEqual(requests(), files);
    assert.deepEqual([tab.state.loaded, tab.state.server?.model, tab.library.catalog.all.length], [true, "sd1", 1]);
});

test("pictures of each LoRA are counted again after a while, while they are read and after others are made", async (t) => {
    t.mock.timers.enable({apis: ["Date"], now: 1e9});
    const {tab, server, requests} = polled([lora("a", {uses: 2, used: 60}), lora("b")]);
    const uses = () => tab.library.catalog.all.map((one) => [one.uses, one.used]);
    const asks = async () => {
        requests();
        await tab.server.poll();
        return requests().includes("GET outputs/loras");
    };
    await tab.server.start();
    assert.deepEqual(uses(), [
        [7, 60],
        [0, 0],
    ]);
    assert.equal(await asks(), false, "that soon");
    t.mock.timers.tick(40_000);
    server.counted = {...server.counted, scan: {running: false}};
    assert.equal(await asks(), true, "they were being read");
    t.mock.timers.tick(40_000);
    assert.equal(await asks(), false, "there are no others");
    server.state = serverState({pictures: 1});
    server.counted = {...server.counted, loras: [{id: "id-b", name: "b", pictures: 1, latest: 9}]};
    assert.equal(await asks(), true);
    assert.deepEqual(uses(), [
        [7, 60],
        [1, 9],
    ]);
    assert.equal(tab.state.version, tab.library.catalog.version, "the list is drawn again");
});

test("a poll loads nothing but the state where nothing else has changed", async () => {
    const {tab, requests} = polled();
    await tab.server.start();
    requests();
    const {server: before} = tab.state;
    await tab.server.poll();
    assert.deepEqual(requests(), ["GET state"]);
    assert.equal(tab.state.server, before);
});

test("a poll loads the files where the list has changed, or is being made", async () => {
    const {tab, server, requests} = polled();
    await tab.server.start();
    requests();
    server.state = serverState({catalog: {running: false, done: 0, total: 0, revision: 2}});
    await tab.server.poll();
    assert.deepEqual(requests(), ["GET state", "GET loras?since=1"]);
    assert.equal(tab.library.catalog.revision, 2);
    await tab.server.poll();
    assert.deepEqual(requests(), ["GET state"]);
    tab.library.catalog.scan = {running: true, done: 1, total: 2};
    await tab.server.poll();
    assert.deepEqual(requests(), ["GET state", "GET loras?since=2"]);
});

test("a poll loads the stack where another page has changed it", async () => {
    const {tab, server, requests} = polled();
    await tab.server.start();
    requests();
    server.state = serverState({stack: "s2"});
    await tab.server.poll();
    assert.deepEqual(requests(), ["GET state", "GET stack"]);
    await tab.server.poll();
    assert.deepEqual(requests(), ["GET state"]);
});

test("with another model the files are asked for again: others fit now", async () => {
    const {tab, server, requests} = polled();
    await tab.server.start();
    requests();
    const {version} = tab.state;
    server.state = serverState({model: "sdxl"});
    await tab.server.poll();
    assert.deepEqual(requests(), ["GET state", "GET loras?since=1"]);
    assert.ok(tab.state.version > version);
});

test("failures of pictures before this page belong to no row, and are not shown", async () => {
    const {tab, server} = polled();
    const failed = {
        name: "x",
        where: "prompt",
        number: 0,
        written: "x",
        state: "missing",
        reason: "",
        always_on: false,
    };
    server.state = serverState({loras: [failed]});
    await tab.server.start();
    assert.deepEqual(tab.stack.outcomes().others, []);
    server.state = serverState({loras: [failed, {...failed, name: "y", written: "y"}]});
    await tab.server.poll();
    assert.deepEqual(
        tab.stack.outcomes().others.map(({name}) => name),
        ["y"],
    );
});

test("a server that does not answer is lost until it answers again", async () => {
    const {tab, server} = polled();
    await tab.server.start();
    server.answers = false;
    await tab.server.poll();
    assert.deepEqual([tab.state.error, tab.state.lost], ["it starts", true]);
    server.answers = true;
    await tab.server.poll();
    assert.deepEqual([tab.state.error, tab.state.lost, tab.state.returns], ["", false, 1]);
    tab.set({lost: true});
    await tab.server.attempt(async () => {});
    await tab.server.poll();
    assert.deepEqual([tab.state.lost, tab.state.returns], [false, 2]);
});

test("an error of something else is not ended by a poll", async () => {
    const {tab} = polled();
    tab.set({error: "the disk is full"});
    await tab.server.poll();
    assert.equal(tab.state.error, "the disk is full");
});

test("nothing is polled while a password is asked for, or before a change of the stack is sent", async (t) => {
    t.mock.timers.enable({apis: ["setTimeout"]});
    const {tab, requests} = polled();
    tab.set({login: true});
    await tab.server.poll();
    tab.set({login: false});
    tab.edits.addAlways("a");
    await tab.server.poll();
    assert.deepEqual(requests(), []);
});

/**
 * Change something that another page has changed, too.
 * @param {() => unknown} part
 * @param {number[]} statuses of the answers to the changes
 */
async function changed(part, statuses) {
    let reloads = 0;
    const {tab, sent} = openPage({routes: {"PUT regions": () => ({status: statuses.shift(), data: {detail: "no"}})}});
    const reload = async () => {
        reloads += 1;
    };
    let status = 200;
    try {
        await tab.server.write("PUT", "regions", {name: "x"}, {reload, part});
    } catch (error) {
        status = /** @type {ApiError} */ (error).status;
    }
    return {status, sent: sent.length, reloads};
}

test("a change is sent again after a reload where its part is the same, and no more than once", async () => {
    assert.deepEqual(await changed(() => 1, [200]), {status: 200, sent: 1, reloads: 0});
    assert.deepEqual(await changed(() => [1], [412, 200]), {status: 200, sent: 2, reloads: 1});
    let at = 0;
    const other = () => {
        at += 1;
        return at;
    };
    assert.deepEqual(await changed(other, [412, 200]), {status: 412, sent: 1, reloads: 1});
    assert.deepEqual(await changed(() => 1, [412, 412]), {status: 412, sent: 2, reloads: 1});
    assert.deepEqual(await changed(() => 1, [507]), {status: 507, sent: 1, reloads: 0});
});
