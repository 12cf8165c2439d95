// What a site says of a file, and how far a job is, in words.

/**
 * @import {OnlineJob, OnlineLora} from "../api.d.ts"
 * @import {Tab} from "./main.js"
 */

import {select, SHOWS, size} from "./catalog.js";
import {locale, t} from "./words.js";

/** @type {{[term: string]: import("./words.js").Key}} */
const TERMS = {
    credit: "online.credit",
    no_commercial: "online.noCommercial",
    images: "online.images",
    rent: "online.rent",
    rent_civitai: "online.rentCivitai",
    sell: "online.sell",
    no_derivatives: "online.noDerivatives",
    same_licence: "online.sameLicence",
};

/**
 * Return what is known of a file, as names and values.
 * @param {OnlineLora} one
 */
export const aboutOf = (one) =>
    [
        [t("common.model"), one.model],
        [t("online.version"), one.version],
        [t("online.creator"), one.creator],
        [t("details.madeFrom"), one.base_model],
        [t("online.licence"), one.licence || one.terms.map((term) => t(TERMS[term])).join(t("mark.list"))],
        [t("online.checked"), new Date(one.checked * 1000).toLocaleString(locale())],
    ].filter(([, value]) => value);

/**
 * Say how far a job is.
 * @param {Pick<OnlineJob, "kind" | "done" | "total" | "there" | "size">} job
 */
export function progressOf({kind, done, total, there, size: all}) {
    const files = t("online.files", {done, count: total});
    if (kind === "lookup") return files;
    const bytes = all ? t("online.bytes", {done: size(there), total: size(all)}) : size(there);
    return kind === "newer" ? [files, bytes].join(t("mark.list")) : bytes;
}

/**
 * Say what a look-up found, or how many newer versions were downloaded.
 * @param {Pick<OnlineJob, "kind" | "found" | "unknown">} job
 */
export function resultOf({kind, found, unknown}) {
    if (kind === "newer") return t("online.downloadedNewer", {count: found});
    return [t("online.found", {count: found}), t("online.unknownFiles", {count: unknown})].join(t("mark.list"));
}

const MOST = 10_000; // files of a request

/**
 * Return the ids of the files with a newer version that is not here: of those that are selected, else of those that the library shows.
 * @param {Tab} tab
 */
export function withNewer(tab) {
    const {catalog} = tab.library;
    const {query, filters, sort} = tab.state;
    const {chosen} = tab.many;
    const loras = chosen.length
        ? chosen.flatMap((id) => catalog.byId.get(id) ?? [])
        : select(catalog, query, filters, sort);
    return loras
        .filter((lora) => SHOWS.newer[1](lora, catalog))
        .map(({id}) => id)
        .slice(0, MOST);
}
