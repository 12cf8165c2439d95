// The left pane: all files, found and shown.

/**
 * @import {Lora, Scan as ScanState} from "../../api.d.ts"
 * @import {Catalog, Facet, Filters as Chosen} from "../catalog.js"
 * @import {State, Tab} from "../main.js"
 * @import {Key} from "../vendor/preact.js"
 */

import {html, useMemo, useState} from "../vendor/preact.js";
import {facets, foldersAt, foldersOf, NO_FILTERS, prepareSearch, SHOWS, SORTS, select} from "../catalog.js";
import {VIEWS} from "../library.js";
import {t} from "../words.js";
import {Icon} from "./icons.js";
import {broken, Button, Trouble, useLater, WordButton} from "./parts.js";
import {Card} from "./card.js";
import {Reading, useCopies} from "./copies.js";
import {Selection} from "./many.js";
import {Virtual} from "./virtual.js";

const PAUSE = 300; // milliseconds without a key, after which the prompts of pictures are searched

/** @param {{tab: Tab, state: State}} props */
export function Library({tab, state}) {
    const {catalog} = tab.library;
    const [more, setMore] = useState(false);
    const found = useMemo(
        () => select(catalog, state.query, state.filters, state.sort),
        [state.version, state.query, state.filters, state.sort],
    );
    const folders = useMemo(() => foldersOf(catalog), [state.version]);
    const words = state.query.trim();
    const {prompts} = state.filters;
    const search = () => tab.server.attempt(() => tab.library.searchPrompts(words));
    useLater(prompts && words !== "" && search, PAUSE, [words, prompts]);
    const [used, pinned] = [tab.stack.used(), tab.stack.pinned()];
    const names = /** @type {(keyof Chosen)[]} */ (Object.keys(NO_FILTERS));
    const active = names.filter((name) => state.filters[name] !== NO_FILTERS[name]).length;
    const filter = (/** @type {Partial<Chosen>} */ changes) => tab.set({filters: {...state.filters, ...changes}});
    const clear = () => tab.set({query: "", filters: NO_FILTERS});
    const {selected} = state;
    return html`<section class="rt-library" aria-label=${t("library.files")} onKeyDown=${(/** @type {Key} */ event) => selectByKey(event, tab, found)}>
        <div class="rt-toolbar"><div class="rt-line">
            <input type="search" aria-label=${t("library.search")} placeholder=${t("library.search")} autocomplete="off" spellcheck=${false}
                value=${state.query} onFocus=${() => prepareSearch(catalog)} onInput=${(event) => tab.set({query: event.target.value})} />
            <${Button} label=${t("library.filters")} class="rt-small" aria-expanded=${String(more)} onClick=${() => setMore(!more)}>
                ${active ? t("library.filtersSet", {count: active}) : t("library.filters")}<//>
            <${WordButton} icon="refresh" word=${t("library.refresh")} label=${t("library.refreshHint")}
                onClick=${() => tab.server.attempt(() => tab.library.refresh("POST"))} />
        </div></div>
        ${more && html`<${Filters} folders=${folders} state=${state} filter=${filter} tab=${tab} />`}
        ${["copies", "single", "superseded"].includes(state.filters.show) && html`<${AboutCopies} tab=${tab} />`}
        <${Folders} folders=${folders} state=${state} filter=${filter} tab=${tab} />
        <div class="rt-line rt-found">
            <div class=${found.length ? "rt-hint rt-line" : "rt-empty"} role="status">
                ${!found.length && html`<${Icon} name=${state.loaded ? "grid" : "refresh"} />`}
                <span>${countOf(state, found, catalog)}</span>
                ${words && !prompts && html`<button type="button" class="rt-link" title=${t("library.promptsHint")} onClick=${() => filter({prompts: true})}>${t("library.prompts")}</button>`}
                ${(active > 0 || state.query) && html`<button type="button" class="rt-link" onClick=${clear}>${t("library.showAll")}</button>`}
            </div>
            ${found.length > 0 && html`<${Button} label=${t("many.selectHint")} class="rt-small" aria-pressed=${String(selected !== null)} onClick=${() => tab.many.select(selected ? null : [])}>${t("many.select")}<//><${Density} tab=${tab} view=${state.view} />`}
        </div>
        <${Selection} tab=${tab} state=${state} found=${found} />
        <${Scan} scan=${state.scan} />
        ${
            found.length > 0
            && html`<${Virtual} items=${found} size=${VIEWS[state.view]} label=${t("library.found")} draw=${(
                /** @type {Lora} */ lora,
            ) => html`
            <${Card} key=${lora.id} lora=${lora} tab=${tab} view=${state.view} used=${used.has(lora.id)}
                selected=${selected?.has(lora.id)} pick=${(/** @type {boolean} */ adds) => tab.many.pick(lora.id, found, adds)}
                pinned=${pinned.has(lora.id)} against=${catalog.against(lora)} />`} />`
        }
    </section>`;
}

/**
 * Select all files by Ctrl+A, and end selecting by Escape, where nothing is being typed.
 * @param {Key} event
 * @param {Tab} tab
 * @param {Lora[]} found
 */
function selectByKey(event, tab, found) {
    const isTyping = /** @type {Element} */ (event.target).matches("input, select, textarea");
    if (!isTyping && event.key.toLowerCase() === "a" && (event.ctrlKey || event.metaKey)) {
        tab.many.select(found.map(({id}) => id));
    } else if (!isTyping && event.key === "Escape" && tab.state.selected) {
        tab.many.select(null);
    } else {
        return;
    }
    event.preventDefault();
    event.stopPropagation();
}

const TITLES = /** @type {const} */ ({
    list: "library.view.list",
    small: "library.view.small",
    medium: "library.view.medium",
    large: "library.view.large",
});
const LETTERS = /** @type {const} */ ({
    small: "library.letter.small",
    medium: "library.letter.medium",
    large: "library.letter.large",
});

/** @param {{tab: Tab, view: keyof typeof VIEWS}} props */
function Density({tab, view}) {
    const names = /** @type {(keyof typeof VIEWS)[]} */ (Object.keys(VIEWS));
    return html`<div class="rt-switch rt-density" role="group" aria-label=${t("library.views")}>
        ${names.map(
            (name) => html`<${Button} key=${name} label=${t(TITLES[name])} aria-pressed=${String(name === view)}
            onClick=${() => tab.set({view: name})}>${name === "list" ? html`<${Icon} name="list" />` : t(LETTERS[name])}<//>`,
        )}
    </div>`;
}

/**
 * @param {State} state
 * @param {Lora[]} found
 * @param {Catalog} catalog
 */
function countOf(state, found, catalog) {
    if (!state.loaded) return t(state.login ? "library.logIn" : state.error ? "library.notLoaded" : "common.loading");
    const count = catalog.all.length;
    if (!count) return t(state.scan.running ? "library.looking" : "library.none");
    const query = state.query.trim();
    if (!found.length) return query ? t("library.noMatch", {query}) : t("library.nonePasses");
    return found.length === count ? t("library.count", {count}) : t("library.countOf", {found: found.length, count});
}

/**
 * Draw where in the folders the user is: the folders around, and those inside; or all of them as a tree.
 * @param {{folders: Facet, state: State, filter: (changes: Partial<Chosen>) => void, tab: Tab}} props
 */
function Folders({folders, state, filter, tab}) {
    if (!folders.length) return null;
    const {folder} = state.filters;
    const isDeep = folders.some(([path]) => path.includes("/"));
    const flip =
        isDeep
        && html`<${Button} label=${t("library.tree")} class="rt-small" aria-pressed=${String(state.tree)}
        onClick=${() => tab.set({tree: !state.tree})}><${Icon} name="list" /><//>`;
    if (isDeep && state.tree)
        return html`<nav class="rt-folders rt-tree" aria-label=${t("common.folders")}>
            ${flip}<button type="button" class="rt-link" aria-current=${folder ? undefined : "location"}
                onClick=${() => filter({folder: ""})}>${t("library.allFolders")}</button>
            <${Branch} folders=${folders} path="" current=${folder} go=${(/** @type {string} */ path) => filter({folder: path})} /></nav>`;
    const {around, inside} = foldersAt(folders, folder);
    const last = (/** @type {string} */ path) => path.split("/").pop();
    return html`<nav class="rt-folders" aria-label=${t("common.folders")}>${flip}
        ${["", ...around].map(
            (
                path,
            ) => html`<button type="button" key=${path} class="rt-link" aria-current=${path === folder ? "location" : undefined}
            onClick=${() => filter({folder: path})}>${path ? broken(`/ ${last(path)}`) : t("library.allFolders")}</button>`,
        )}
        ${inside.map(
            ([path, count]) => html`<button type="button" key=${path} class="rt-chip" title=${path}
            onClick=${() => filter({folder: path})}>${broken(last(path) ?? "")} <span class="rt-count">${count}</span></button>`,
        )}
    </nav>`;
}

/**
 * Draw the folders in a folder, each with those in it where it is open.
 * @param {{folders: Facet, path: string, current: string, go: (path: string) => void}} props
 */
function Branch({folders, path, current, go}) {
    const [open, setOpen] = useState(/** @type {string[]} */ ([]));
    return html`<ul>${foldersAt(folders, path).inside.map(([inner, count]) => {
        const name = inner.slice(path ? path.length + 1 : 0);
        const hasMore = folders.some(([other]) => other.startsWith(`${inner}/`));
        const isOpen = hasMore && (open.includes(inner) || current.startsWith(`${inner}/`));
        const flip = () => setOpen(isOpen ? open.filter((one) => one !== inner) : [...open, inner]);
        return html`<li key=${inner}>
            ${hasMore && html`<button type="button" class="rt-link rt-fold" aria-expanded=${String(isOpen)} aria-label=${t("library.inside", {folder: name})} onClick=${flip}>${isOpen ? "▾" : "▸"}</button>`}
            <button type="button" class="rt-link" aria-current=${inner === current ? "location" : undefined}
                onClick=${() => go(inner)}>${broken(name)}</button><span class="rt-count">${count}</span>
            ${isOpen && html`<${Branch} folders=${folders} path=${inner} current=${current} go=${go} />`}</li>`;
    })}</ul>`;
}

/** @param {{scan: ScanState}} props */
function Scan({scan}) {
    if (!scan.running || !scan.total) return null;
    return html`<div class="rt-scan" role="status">
        <progress max=${scan.total} value=${scan.done} aria-label=${t("library.filesRead")}></progress>
        <span class="rt-hint">${t("library.readOf", {done: scan.done, total: scan.total})}</span>
    </div>`;
}

/**
 * Say how far the search for copies is, while files are filtered by it.
 * @param {{tab: Tab}} props
 */
function AboutCopies({tab}) {
    const {told, trouble} = useCopies(tab, 0);
    return html`<${Trouble} trouble=${trouble} /><${Reading} told=${told} />`;
}

/** @param {{folders: Facet, state: State, filter: (changes: Partial<Chosen>) => void, tab: Tab}} props */
function Filters({folders, state, filter, tab}) {
    const {filters} = state;
    const known = useMemo(() => facets(tab.library.catalog), [state.version]);
    /**
     * @param {"folder" | "family" | "kind" | "tag"} name
     * @param {string} title
     * @param {Facet} options
     * @param {(value: string) => string} [label]
     */
    const chooser = (name, title, options, label = (value) => value) => html`
        <label class="rt-field"><span>${title}</span>
            <select value=${filters[name]} onChange=${(event) => filter({[name]: event.target.value})}>
                <option value="">${t("common.all")}</option>
                ${options.map(([value, count]) => html`<option key=${value} value=${value}>${label(value)} (${count})</option>`)}
            </select></label>`;
    const indented = (/** @type {string} */ folder) =>
        `${"\u00a0\u00a0".repeat(folder.split("/").length - 1)}${folder.split("/").pop()}`;
    return html`<div class="rt-filters">
        ${chooser("folder", t("common.folder"), folders, indented)}
        ${chooser("family", t("common.madeFor"), known.families)}
        ${chooser("kind", t("common.kind"), known.kinds)}
        ${chooser("tag", t("library.tag"), known.tags)}
        <label class="rt-field"><span>${t("common.rating")}</span>
            <select value=${filters.rating} onChange=${(event) => filter({rating: Number(event.target.value)})}>
                <option value="0">${t("common.all")}</option>
                ${[1, 2, 3, 4, 5].map((stars) => html`<option key=${stars} value=${stars}>${t("library.stars", {stars: "★".repeat(stars)})}</option>`)}
            </select></label>
        <label class="rt-field"><span>${t("library.sortBy")}</span>
            <select value=${state.sort} onChange=${(event) => tab.set({sort: event.target.value})}>
                ${Object.entries(SORTS).map(([name, [title]]) => html`<option key=${name} value=${name}>${t(title)}</option>`)}
            </select></label>
        <label class="rt-field"><span>${t("library.show")}</span>
            <select value=${filters.show} onChange=${(event) => filter({show: event.target.value})}>
                ${Object.entries(SHOWS).map(([name, [title]]) => html`<option key=${name} value=${name}>${t(title)}</option>`)}
            </select></label>
        <label class="rt-check"><input type="checkbox" checked=${filters.favourite}
            onChange=${(event) => filter({favourite: event.target.checked})} /> ${t("library.favourites")}</label>
        <label class="rt-check"><input type="checkbox" checked=${filters.fits}
            onChange=${(event) => filter({fits: event.target.checked})} /> ${t("library.fits")}</label>
        <label class="rt-check" title=${t("library.promptsHint")}><input type="checkbox" checked=${filters.prompts}
            onChange=${(event) => filter({prompts: event.target.checked})} /> ${t("library.prompts")}</label>
        <${Button} label=${t("copies.openHint")} class="rt-small" onClick=${() => tab.set({dialog: "copies"})}>${t("copies.open")}<//>
        <${Button} label=${t("trash.openHint")} class="rt-small" onClick=${() => tab.set({dialog: "trash"})}>${t("trash.open")}<//>
        <${Button} label=${t("online.openHint")} class="rt-small" onClick=${() => tab.set({dialog: "online"})}>${t("online.openDialog")}<//>
    </div>`;
}
