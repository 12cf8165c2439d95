// The pictures in the output folders that used one LoRA.

/**
 * @import {OutputPicture, OutputPictures, Recipe} from "../../api.d.ts"
 * @import {Tab} from "../main.js"
 * @import {Does} from "./recipe.js"
 */

import {html, useState} from "../vendor/preact.js";
import {furtherOf, joined, latestOf, recipeOf, strengthIn, thumbnailOf, usesOf} from "../outputs.js";
import {locale, t, translated} from "../words.js";
import {Picture, Trouble, useLater, useLoad} from "./parts.js";
import {Keep, Parts, Uses} from "./recipe.js";

const POLL = 3000; // milliseconds, while the server reads the pictures
const PAUSE = 300; // milliseconds without a key, after which prompts are searched

/** @param {{tab: Tab, lora: string}} props */
export function Outputs({tab, lora}) {
    const [told, setTold] = useState(/** @type {OutputPictures | null} */ (null));
    const [chosen, setChosen] = useState(/** @type {OutputPicture | null} */ (null));
    const [round, setRound] = useState(0);
    const [words, setWords] = useState(""); // as they are typed
    const [sought, setSought] = useState("");
    useLater(() => setSought(words.trim()), PAUSE, [words]);
    const load = async () => setTold(await latestOf(tab, lora, sought, told?.pictures.length ?? 0));
    const [trouble, attempt] = useLoad(tab, load, [lora, sought, round, tab.state.server?.pictures]);
    useLater(told?.scan.running && (() => setRound(round + 1)), POLL, [told]);
    const further = () =>
        attempt(async () => {
            const pictures = told?.pictures ?? [];
            const more = await furtherOf(tab, lora, sought, pictures.length);
            setTold({...more, pictures: joined(pictures, more.pictures)});
        });
    if (!told)
        return html`<${Trouble} trouble=${trouble} />${!trouble.text && html`<p class="rt-hint">${t("common.loading")}</p>`}`;
    const {found, pictures, scan} = told;
    return html`<div class="rt-part">
        <${Trouble} trouble=${trouble} />
        ${told.problem && html`<p class="rt-notice">${translated(told.problem)}</p>`}
        ${
            (sought || found > 0)
            && html`<input type="search" aria-label=${t("outputs.words")} placeholder=${t("outputs.words")} autocomplete="off"
            spellcheck=${false} value=${words} onInput=${(event) => setWords(event.target.value)} />`
        }
        <p class="rt-hint" role="status">${found || !scan.running ? t("outputs.count", {count: found}) : ""}
            ${scan.total > 0 && html` ${t("outputs.reading", {done: scan.done, total: scan.total})}`}</p>
        <ul class="rt-outputs" aria-label=${t("outputs.title")}>${pictures.map((picture) => {
            const isChosen = chosen?.id === picture.id;
            return html`<li key=${picture.id}><${Thumbnail} tab=${tab} picture=${picture} lora=${lora}
                chosen=${isChosen} choose=${() => setChosen(picture)} /></li>
                ${isChosen && html`<li key=${`${picture.id} chosen`} class="rt-output-chosen"><${Chosen} tab=${tab} picture=${picture} /></li>`}`;
        })}</ul>
        ${pictures.length < found && html`<div class="rt-line"><button type="button" class="rt-small" onClick=${further}>${t("outputs.more")}</button></div>`}
    </div>`;
}

/** @param {{tab: Tab, picture: OutputPicture, lora: string, chosen: boolean, choose: () => void}} props */
function Thumbnail({tab, picture, lora, chosen, choose}) {
    const uses = usesOf(picture).join(t("mark.list"));
    const label = [picture.file, uses].filter(Boolean).join(": ");
    return html`<button type="button" class="rt-output" aria-label=${label} title=${`${uses}\n${picture.prompt}`}
        aria-pressed=${String(chosen)} onFocus=${choose} onClick=${choose}>
        <span class="rt-thumb"><${Picture} api=${tab.api} name=${String(picture.seed ?? "")}
            path=${thumbnailOf(picture)} /></span>
        <span class="rt-hint">${strengthIn(picture, lora)}</span></button>`;
}

/**
 * Draw what one picture was made with.
 * @param {{tab: Tab, picture: OutputPicture}} props
 */
function Chosen({tab, picture}) {
    const [told, setTold] = useState(/** @type {Recipe | null} */ (null));
    const [round, setRound] = useState(0);
    const [said, setSaid] = useState("");
    const [trouble, attempt] = useLoad(tab, async () => setTold(await recipeOf(tab, picture)), [round]);
    useLater(told?.searching && (() => setRound(round + 1)), POLL, [told]);
    /** @type {Does} */
    const does = (work, done) =>
        attempt(async () => {
            await work();
            setSaid(done);
        });
    const time = new Date(picture.time * 1000).toLocaleString(locale());
    const size = `${picture.width} × ${picture.height}`;
    const seed = picture.seed === null ? "" : t("common.seed", {seed: String(picture.seed)});
    const name = picture.file.split("/").pop() ?? "";
    const pictureOf = async () => (await tab.api.send("GET", thumbnailOf(picture))).blob();
    return html`<div role="group" aria-label=${picture.file} class="rt-part">
        <p class="rt-hint">${[picture.file, time, size, seed].filter(Boolean).join(t("mark.list"))}</p>
        ${!told && html`<p class="rt-output-prompt">${picture.prompt}</p>`}
        ${told && html`<${Parts} tab=${tab} told=${{...told, file: ""}} />`}
        <${Trouble} trouble=${trouble} />
        ${
            told
            && html`<div class="rt-line"><${Uses} tab=${tab} told=${told} does=${does} size="rt-small" />
            <span class="rt-hint" role="status">${said}</span></div>
            <${Keep} tab=${tab} recipe=${told} name=${name} pictureOf=${pictureOf} does=${does} />`
        }
    </div>`;
}
