// What a site says of a file, and how far a job is, in words. Pure.

/** @import {OnlineJob, OnlineLora} from "../api.d.ts" */

import {size} from "./catalog.js";
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
 * @param {Pick<OnlineJob, "kind" | "done" | "total">} job
 */
export function progressOf({kind, done, total}) {
    if (kind === "lookup") return t("online.files", {done, count: total});
    return total ? t("online.bytes", {done: size(done), total: size(total)}) : size(done);
}

/**
 * Say what a look-up found.
 * @param {Pick<OnlineJob, "found" | "unknown">} job
 */
export const resultOf = ({found, unknown}) =>
    [t("online.found", {count: found}), t("online.unknownFiles", {count: unknown})].join(t("mark.list"));
