// The left pane: all files, found and shown.

/**
 * @import {Lora, Scan as ScanState} from "../../api.d.ts"
 * @import {Catalog, Facet, Filters as Chosen} from "../catalog.js"
 * @import {State, Tab} from "../main.js"
 */

import {html, useMemo, useState} from "../vendor/preact.js";
import {facets, foldersAt, foldersOf, NO_FILTERS, select, SORTS} from "../catalog.js";
import {VIEWS} from "../library.js";
import {Icon} from "./icons.js";
import {broken, Button, WordButton} from "./parts.js";
import {Card} from "./card.js";
import {Virtual} from "./virtual.js";

/** @param {{tab: Tab, state: State}} props */
export function Library({tab, state}) {
    const {catalog} = tab.library;
    const [more, setMore] = useState(false);
    const found = useMemo(
        () => select(catalog, state.query, state.filters, state.sort),
        [state.version, state.query, state.filters, state.sort],
    );
    const folders = useMemo(() => foldersOf(catalog), [state.version]);
    const [used, pinned] = [tab.stack.used(), tab.stack.pinned()];
    const names = /** @type {(keyof Chosen)[]} */ (Object.keys(NO_FILTERS));
    const active = names.filter((name) => state.filters[name] !== NO_FILTERS[name]).length;
    const filter = (/** @type {Partial<Chosen>} */ changes) => tab.set({filters: {...state.filters, ...changes}});
    const clear = () => tab.set({query: "", filters: NO_FILTERS});
    return html`<section class="rt-library" aria-label="LoRA files">
        <div class="rt-toolbar"><div class="rt-line">
            <input type="search" aria-label="Search LoRA" placeholder="Search LoRA" autocomplete="off" spellcheck=${false}
                value=${state.query} onInput=${(event) => tab.set({query: event.target.value})} />
            <${Button} label="Filters" class="rt-small" aria-expanded=${String(more)} onClick=${() => setMore(!more)}>
                ${active ? `Filters (${active})` : "Filters"}<//>
            <${WordButton} icon="refresh" word="Refresh" label="Refresh: look for LoRA files again"
                onClick=${() => tab.server.attempt(() => tab.library.refresh("POST"))} />
        </div></div>
        ${more && html`<${Filters} folders=${folders} state=${state} filter=${filter} tab=${tab} />`}
        <${Folders} folders=${folders} state=${state} filter=${filter} />
        <div class="rt-line rt-found">
            <div class=${found.length ? "rt-hint rt-line" : "rt-empty"} role="status">
                ${!found.length && html`<${Icon} name=${state.loaded ? "grid" : "refresh"} />`}
                <span>${countOf(state, found, catalog)}</span>
                ${(active > 0 || state.query) && html`<button type="button" class="rt-link" onClick=${clear}>Show all</button>`}
            </div>
            ${found.length > 0 && html`<${Density} tab=${tab} view=${state.view} />`}
        </div>
        <${Scan} scan=${state.scan} />
        ${
            found.length > 0
            && html`<${Virtual} items=${found} size=${VIEWS[state.view]} label="LoRA found" draw=${(
                /** @type {Lora} */ lora,
            ) => html`
            <${Card} key=${lora.id} lora=${lora} tab=${tab} view=${state.view} used=${used.has(lora.id)}
                pinned=${pinned.has(lora.id)} against=${catalog.against(lora)} />`} />`
        }
    </section>`;
}

/** @param {{tab: Tab, view: keyof typeof VIEWS}} props */
function Density({tab, view}) {
    const names = /** @type {(keyof typeof VIEWS)[]} */ (Object.keys(VIEWS));
    return html`<div class="rt-switch rt-density" role="group" aria-label="How files are shown">
        ${names.map(
            (
                name,
            ) => html`<${Button} key=${name} label=${name === "list" ? "List" : `Cards: ${name}`} aria-pressed=${String(name === view)}
            onClick=${() => tab.set({view: name})}>${name === "list" ? html`<${Icon} name="list" />` : name[0].toUpperCase()}<//>`,
        )}
    </div>`;
}

/**
 * @param {State} state
 * @param {Lora[]} found
 * @param {Catalog} catalog
 */
function countOf(state, found, catalog) {
    if (!state.loaded) return state.login ? "Log in to see the LoRA files." : state.error ? "Not loaded." : "Loading …";
    if (!catalog.all.length) {
        return state.scan.running
            ? "Looking for LoRA files …"
            : "No LoRA files were found. Put some into the web UI’s LoRA folder, then press Refresh.";
    }
    if (!found.length)
        return state.query.trim() ? `No LoRA matches “${state.query.trim()}”.` : "No LoRA passes the filters.";
    return found.length === catalog.all.length
        ? `${found.length} LoRA`
        : `${found.length} of ${catalog.all.length} LoRA`;
}

/**
 * Draw where in the folders the user is: the folders around, and those inside.
 * @param {{folders: Facet, state: State, filter: (changes: Partial<Chosen>) => void}} props
 */
function Folders({folders, state, filter}) {
    if (!folders.length) return null;
    const {folder} = state.filters;
    const {around, inside} = foldersAt(folders, folder);
    const last = (/** @type {string} */ path) => path.split("/").pop();
    return html`<nav class="rt-folders" aria-label="Folders">
        ${["", ...around].map(
            (
                path,
            ) => html`<button type="button" key=${path} class="rt-link" aria-current=${path === folder ? "location" : undefined}
            onClick=${() => filter({folder: path})}>${path ? broken(`/ ${last(path)}`) : "All folders"}</button>`,
        )}
        ${inside.map(
            ([path, count]) => html`<button type="button" key=${path} class="rt-chip" title=${path}
            onClick=${() => filter({folder: path})}>${broken(last(path) ?? "")} <span class="rt-count">${count}</span></button>`,
        )}
    </nav>`;
}

/** @param {{scan: ScanState}} props */
function Scan({scan}) {
    if (!scan.running || !scan.total) return null;
    return html`<div class="rt-scan" role="status">
        <progress max=${scan.total} value=${scan.done} aria-label="LoRA files read"></progress>
        <span class="rt-hint">${scan.done} of ${scan.total} read</span>
    </div>`;
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
                <option value="">All</option>
                ${options.map(([value, count]) => html`<option key=${value} value=${value}>${label(value)} (${count})</option>`)}
            </select></label>`;
    const indented = (/** @type {string} */ folder) =>
        `${"\u00a0\u00a0".repeat(folder.split("/").length - 1)}${folder.split("/").pop()}`;
    return html`<div class="rt-filters">
        ${chooser("folder", "Folder", folders, indented)}
        ${chooser("family", "Made for", known.families)}
        ${chooser("kind", "Kind", known.kinds)}
        ${chooser("tag", "Tag", known.tags)}
        <label class="rt-field"><span>Rating</span>
            <select value=${filters.rating} onChange=${(event) => filter({rating: Number(event.target.value)})}>
                <option value="0">All</option>
                ${[1, 2, 3, 4, 5].map((stars) => html`<option key=${stars} value=${stars}>${"★".repeat(stars)} and better</option>`)}
            </select></label>
        <label class="rt-field"><span>Sort by</span>
            <select value=${state.sort} onChange=${(event) => tab.set({sort: event.target.value})}>
                ${Object.entries(SORTS).map(([name, [title]]) => html`<option key=${name} value=${name}>${title}</option>`)}
            </select></label>
        <label class="rt-check"><input type="checkbox" checked=${filters.favourite}
            onChange=${(event) => filter({favourite: event.target.checked})} /> Favourites</label>
        <label class="rt-check"><input type="checkbox" checked=${filters.fits}
            onChange=${(event) => filter({fits: event.target.checked})} /> Fit the model</label>
    </div>`;
}
