// Which language the tab speaks: the one that the web UI is set to; where the web UI has no such setting, the one that
// the user chose in the tab, else the browser's.

import {ENGLISH} from "./languages/en.js";
import {speak} from "./words.js";

/**
 * @typedef {{[name: string]: unknown}} Settings
 * The settings of a web UI by name.
 *
 * @typedef {{[tag: string]: string}} Languages
 * What each language calls itself, by its tag.
 */

const ENGLISH_TAG = "en";
const NONE = "None"; // A1111's name of no localization
const AUTO = "Auto"; // SD.Next's name of the browser's language
const TAG = /^[a-z]{2,3}(?:[-_][a-z0-9]{2,8})*(?![a-z])/i;

/** Return the settings of the page's web UI; null where it has none, as the embedded one. */
export const settingsOfPage = () => (typeof opts === "undefined" ? null : opts);

/**
 * Return the names of the languages that are wanted, the best first; null while the page's settings are not loaded.
 * @param {Settings | null} settings of the web UI
 * @param {string} chosen in the tab
 * @param {readonly string[]} ofBrowser
 */
export function wanted(settings, chosen, ofBrowser) {
    if (!settings) return chosen ? [chosen] : ofBrowser;
    const {ui_locale: locale, localization} = settings;
    if (typeof locale === "string") return locale === AUTO ? ofBrowser : [locale.split(":")[0]];
    if (typeof localization === "string") return [localization === NONE ? bilingual(settings) : localization];
    return Object.keys(settings).length ? [ENGLISH_TAG] : null;
}

/**
 * Return the language that the extension Bilingual Localization shows; it wants A1111's own localization off.
 * @param {Settings} settings
 */
function bilingual({bilingual_localization_enabled: enabled, bilingual_localization_file: file}) {
    return enabled && typeof file === "string" ? file : ENGLISH_TAG;
}

/**
 * Return the tag of the first language that is wanted and that there is, else English.
 * @param {readonly string[]} names tags, or names of localization files such as `zh-Hans (Stable)`
 * @param {Languages} languages
 */
export function chosenOf(names, languages) {
    for (const name of names) {
        const script = scriptOf(name);
        const tag = Object.keys(languages).find((other) =>
            script ? scriptOf(other) === script : isCalled(name, other),
        );
        if (tag) return tag;
        const own = Object.entries(languages).find(([, called]) => name.startsWith(called));
        if (own) return own[0];
    }
    return ENGLISH_TAG;
}

/**
 * Return the language and the script of a tag, as `zh-Hans` of zh_CN; null where a name begins with no tag.
 * @param {string} name
 */
function scriptOf(name) {
    const tag = TAG.exec(name)?.[0].replaceAll("_", "-");
    if (!tag) return null;
    try {
        const {language, script} = new Intl.Locale(tag).maximize();
        return `${language}-${script}`;
    } catch (error) {
        if (error instanceof RangeError) return null; // it is no tag
        throw error;
    }
}

/**
 * Tell whether a name begins with the English name of a language, as `Chinese-All`.
 * @param {string} name
 * @param {string} tag
 */
function isCalled(name, tag) {
    const {language} = new Intl.Locale(tag);
    const called = new Intl.DisplayNames([ENGLISH_TAG], {type: "language"}).of(language) ?? tag;
    return name.toLowerCase().startsWith(called.toLowerCase());
}

/** The languages that there are, and the one that is spoken. */
export class Language {
    constructor() {
        /** @type {Languages} */
        this.all = {[ENGLISH_TAG]: ENGLISH["language.name"]};
        this.tag = ENGLISH_TAG; // of the language that is spoken, or will be
    }

    /** Load the list of languages. */
    async load() {
        this.all = {...this.all, ...(await json("languages.json"))};
    }

    /**
     * Speak the language that is wanted now; tell whether that is another one.
     * @param {string} chosen in the tab
     */
    async follow(chosen) {
        const names = wanted(settingsOfPage(), chosen, navigator.languages);
        const tag = names ? chosenOf(names, this.all) : this.tag;
        if (tag === this.tag) return false;
        this.tag = tag;
        const strings = tag === ENGLISH_TAG ? ENGLISH : await json(`languages/${tag}.json`);
        if (tag !== this.tag) return false; // another one is wanted by now
        speak(tag, strings);
        return true;
    }
}

/**
 * Return the data of a file of the tab; nothing where it cannot be loaded, so that all is in English.
 * @param {string} name
 * @returns {Promise<{[key: string]: string}>}
 */
async function json(name) {
    try {
        const answer = await fetch(new URL(name, import.meta.url), {credentials: "same-origin", cache: "no-cache"});
        if (answer.ok) return await answer.json();
        console.error(`Remora: the web UI answered ${answer.status} to GET ${name}, so the tab is in English.`);
    } catch (error) {
        console.error(`Remora: ${name} could not be loaded, so the tab is in English:`, error);
    }
    return {};
}
