// Recipes: the prompt, settings, model and LoRA of a picture or a preset, and which of these LoRA are here.

/**
 * @import {Recipe, RecipeLora} from "../api.d.ts"
 * @import {Tab} from "./main.js"
 *
 * @typedef {{preset: string, file: File | null}} RecipeOf
 * What is shown: a preset by its name, or a file that was dropped or opened.
 */

import {query} from "./api.js";
import {paste} from "./boxes.js";
import {readTags, withEntry} from "./prompt.js";
import {t} from "./words.js";

const LINK = "#remora-preset="; // what the address of a page ends with, before the name of a preset
const LARGEST_TEXT = 2 << 20; // bytes, which the server takes

/** @type {{recipe: RecipeOf | null}} */
export const RECIPES = {recipe: null};

/** @param {Blob} file */
export const isPicture = (file) => file.type.startsWith("image/");

/**
 * Ask the server what a file or a preset says; throws its errors.
 * @param {Tab} tab
 * @param {RecipeOf} shown
 * @returns {Promise<Recipe>}
 */
export async function readRecipe(tab, {preset, file}) {
    if (!file) return tab.api.get(/** @type {const} */ (`preset/recipe?${query({name: preset})}`));
    if (isPicture(file)) return tab.api.ask("POST", "recipe/picture", file);
    if (file.size > LARGEST_TEXT) throw new Error(t("recipe.tooLarge", {name: file.name}));
    return tab.api.ask("POST", "recipe", {text: await file.text()});
}

/**
 * Say what became of a LoRA of a recipe.
 * @param {RecipeLora} lora
 * @param {string} own the name of the file here
 */
export function aboutLora({by, name}, own) {
    if (by === "") return `✕ ${t("recipe.missing")}`;
    if (by === "other") return `⚠ ${t("recipe.other")}`;
    if (by === "tensors") return t("recipe.tensors", {name: own});
    return own === name ? t("recipe.here") : t("recipe.hereAs", {name: own});
}

/**
 * Put tags into the prompt, in place of those that it has; it is undone in one step.
 * @param {Tab} tab
 * @param {string} tags
 */
export function useTags(tab, tags) {
    const changes = tab.edits.cleared();
    for (const {text} of readTags(tags)) changes.prompt = withEntry(changes.prompt, text, "");
    tab.stack.change(changes);
    tab.set({said: t("outputs.inUse")});
}

/**
 * Have the page read the prompt and all settings of a recipe. Some pages then show the prompt in place of the tab: an
 * open dialog would be out of sight, and hold all clicks and keys.
 * @param {Tab} tab
 * @param {Recipe} recipe
 */
export function useAll(tab, recipe) {
    if (!paste(tab.state.target, recipe.own)) throw new Error(t("recipe.noPaste"));
    tab.set({recipe: null, details: "", dialog: "", said: t("recipe.allInUse")});
}

/**
 * Keep what was opened as a preset; throws errors of the server.
 * @param {Tab} tab
 * @param {Recipe} recipe
 * @param {Blob} file
 * @param {string} name
 */
export async function keepRecipe(tab, recipe, file, name) {
    const path = /** @type {const} */ (`preset?${query({name})}`);
    const text = readTags(recipe.tags)
        .map((tag) => tag.text)
        .join("\n");
    await tab.kept.writePresets("PUT", path, [name], {text, parameters: recipe.text});
    if (isPicture(file)) await tab.kept.writePresets("PUT", `preset/thumbnail?${query({name})}`, [name], file);
}

/**
 * Return the address of this page that shows a preset.
 * @param {string} name
 */
export function linkTo(name) {
    const {origin, pathname, search} = window.location;
    return `${origin}${pathname}${search}${LINK}${encodeURIComponent(name)}`;
}

/**
 * Return the preset that an address of a page shows; empty for none.
 * @param {string} hash
 */
export function presetOf(hash) {
    if (!hash.startsWith(LINK)) return "";
    try {
        return decodeURIComponent(hash.slice(LINK.length));
    } catch {
        return ""; // the link was cut
    }
}
