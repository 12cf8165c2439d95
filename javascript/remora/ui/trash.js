// The deleted files.

/**
 * @import {DeletedLora, Trash as TrashTold} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 */

import {html, useState} from "../vendor/preact.js";
import {size} from "../catalog.js";
import {locale, t, translated} from "../words.js";
import {Button, Dialog, Name, Trouble, useLoad} from "./parts.js";

const MOST = 500; // files of a request, and of the list

/** @param {{tab: Tab}} props */
export function Trash({tab}) {
    const [told, setTold] = useState(/** @type {TrashTold | null} */ (null));
    const [asked, setAsked] = useState(/** @type {DeletedLora[]} */ ([])); // whether to delete these for good
    const [refused, setRefused] = useState("");
    const load = async () => setTold(await tab.api.get("trash"));
    const [trouble, attempt] = useLoad(tab, load, []);
    const restore = (/** @type {string} */ id) =>
        attempt(async () => {
            const left = await tab.many.send("POST", "files/restore", {}, [id], (count) =>
                t("trash.restored", {count}),
            );
            setRefused(left.map(({reason}) => translated(reason)).join(t("mark.semicolon")));
            await load();
        });
    const remove = () =>
        attempt(async () => {
            const ids = asked.slice(0, MOST).map(({id}) => id);
            setTold(await tab.api.ask("DELETE", "trash", {ids}));
            setAsked(asked.slice(MOST));
        });
    const files = told?.files ?? [];
    const bytes = asked.reduce((sum, one) => sum + one.size, 0);
    const foot = html`<${Trouble} trouble=${trouble} />
        ${refused && html`<p class="rt-error" role="alert">${refused}</p>`}
        ${
            asked.length > 0
                ? html`<div class="rt-notice rt-line" role="alert"><span>${t("trash.sure", {count: asked.length, size: size(bytes)})}</span>
            <button type="button" class="rt-small" onClick=${remove}>${t("trash.forGood")}</button>
            <button type="button" class="rt-small" onClick=${() => setAsked([])}>${t("common.cancel")}</button></div>`
                : files.length > 1
                  && html`<div class="rt-line rt-end"><button type="button" onClick=${() => setAsked(files)}>${t("trash.empty")}</button></div>`
        }`;
    return html`<${Dialog} title=${t("trash.title")} close=${() => tab.set({dialog: ""})} foot=${foot}>
        <p class="rt-hint">${t("trash.about")}</p>
        ${!told && !trouble.text && html`<p class="rt-hint">${t("common.loading")}</p>`}
        ${told && !files.length && html`<p role="status">${t("trash.none")}</p>`}
        <ul class="rt-copies">${files.slice(0, MOST).map(
            (one) => html`<li key=${one.id} class="rt-copy">
            <div class="rt-preset-text"><strong><${Name} text=${one.name} /></strong>
                <span class="rt-hint">${[one.folder, size(one.size), new Date(one.deleted * 1000).toLocaleString(locale())].filter(Boolean).join(" · ")}</span></div>
            <div class="rt-line">
                <${Button} label=${t("trash.restoreHint", {name: one.name})} class="rt-small" onClick=${() => restore(one.id)}>${t("trash.restore")}<//>
                <${Button} label=${t("trash.forGoodHint", {name: one.name})} class="rt-small" onClick=${() => setAsked([one])}>${t("trash.forGood")}<//></div></li>`,
        )}</ul>
    <//>`;
}
