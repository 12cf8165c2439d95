// The files of one training: its epochs, in order. Pure.

/** @import {Lora} from "../api.d.ts" */

/** What stands before the number of an epoch or a step, as trainers write it. */
const NUMBER = /(?:[-_. ]|[-_. ]?(?:epochs?|ep|e|steps?|checkpoint)[-_. ]?)(\d+)$/i;

/**
 * Return the training that a name with a number belongs to, and the number; null of a name without one.
 * @param {string} name
 * @returns {[training: string, number: number] | null}
 */
function numbered(name) {
    const found = NUMBER.exec(name);
    return found ? [name.slice(0, found.index), Number(found[1])] : null;
}

/**
 * Return the epochs of the training of a file, the last one last; the file alone where there are no others. Their names
 * differ in a number, or the names of their folders do, and they have one kind, rank and family. A file without a number
 * is what a training ends with.
 * @param {Lora[]} all
 * @param {Lora} lora
 */
export function epochsOf(all, lora) {
    const alike = all.filter(
        (one) =>
            one.readable
            && one.kind === lora.kind
            && one.family === lora.family
            && String(one.rank) === String(lora.rank)
            && one.layers === lora.layers,
    );
    const byName = inOrder(alike, lora, ({file, folder}) => [file.slice(folder.length), folder]);
    return byName.length > 1 ? byName : inOrder(alike, lora, ({file, folder}) => [folder, file.slice(folder.length)]);
}

/**
 * Return the files whose names differ from that of one file in a number alone, by this number.
 * @param {Lora[]} files
 * @param {Lora} lora
 * @param {(lora: Lora) => [counted: string, same: string]} parts the part of a path with the number, and the other one
 */
function inOrder(files, lora, parts) {
    const [counted, same] = parts(lora);
    const training = numbered(counted)?.[0] ?? counted;
    /** @type {[number: number, lora: Lora][]} */
    const found = [];
    for (const one of files) {
        const [text, other] = parts(one);
        const [of, number] = text === training ? [training, Infinity] : (numbered(text) ?? [null, 0]);
        if (of === training && other === same) found.push([number, one]);
    }
    return found.sort(([a], [b]) => (a === b ? 0 : a - b)).map(([, one]) => one);
}
