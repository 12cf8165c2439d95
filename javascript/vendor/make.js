// Makes javascript/remora/vendor/preact.js again from the packages that package.json pins; with --check, compares it.
// It has a folder of its own: web UIs load every script that lies in javascript/, and the server offers all of remora/.

import {readFileSync, writeFileSync} from "node:fs";
import {fileURLToPath} from "node:url";
import {buildSync} from "esbuild";

const ROOT = new URL("../../", import.meta.url);
const MADE = new URL("javascript/remora/vendor/preact.js", ROOT);

/**
 * Return the version of an installed package.
 * @param {string} name
 * @returns {string}
 */
function versionOf(name) {
    return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, ROOT), "utf8")).version;
}

const HEADER = `/*!
 * Preact ${versionOf("preact")}, with its hooks, and htm ${versionOf("htm")}, unchanged but for being put into one file and made small by
 * esbuild --bundle --format=esm --minify --target=es2020. https://preactjs.com, https://github.com/developit/htm
 *
 * Preact: The MIT License (MIT). Copyright (c) 2015-present Jason Miller
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
 * documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
 * permit persons to whom the Software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
 * Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 * WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
 * OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 *
 * htm: Copyright 2018 Google Inc. Licensed under the Apache License, Version 2.0, see the file LICENSE of this project.
 */
`;

const {outputFiles} = buildSync({
    entryPoints: [fileURLToPath(new URL("javascript/vendor/entry.js", ROOT))],
    bundle: true,
    format: "esm",
    minify: true,
    target: "es2020",
    banner: {js: HEADER.trimEnd()},
    tsconfigRaw: "{}", // tsconfig.json is for the check of types alone
    write: false,
});
const [{text}] = outputFiles;

if (!process.argv.includes("--check")) {
    writeFileSync(MADE, text);
} else if (readFileSync(MADE, "utf8").replaceAll("\r\n", "\n") !== text) {
    console.error(
        "javascript/remora/vendor/preact.js differs from the bundle of the pinned packages; run: npm run vendor",
    );
    process.exitCode = 1;
} else {
    console.log("javascript/remora/vendor/preact.js is the bundle of the pinned packages.");
}
