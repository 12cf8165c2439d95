// Undo and redo of what the tab does to prompts and to the stack that is always on.

const MOST = 200;
const TOGETHER = 1000; // milliseconds in which changes of one thing, as by a slider, are one

/**
 * @template S the state that a change leads from and to
 *
 * @typedef {{target: string, before: S, after: S, key: string}} Change
 * Changes of one `key` in a row can be one.
 */

/** @template S */
export class History {
    constructor() {
        /** @type {(Change<S> & {time: number})[]} */
        this.past = [];
        /** @type {(Change<S> & {time: number})[]} */
        this.future = [];
    }

    /**
     * Remember a change; of equal keys in a row the first `before` stays.
     * @param {Change<S>} change
     */
    add(change) {
        const last = this.past[this.past.length - 1];
        const now = Date.now();
        if (
            last
            && change.key
            && last.key === change.key
            && last.target === change.target
            && now - last.time < TOGETHER
        ) {
            Object.assign(last, {after: change.after, time: now});
        } else {
            this.past.push({...change, time: now});
            if (this.past.length > MOST) this.past.shift();
        }
        this.future = [];
    }

    /** Return the change to take back, which can be made again afterwards; undefined where there is none. */
    undo() {
        const change = this.past.pop();
        if (change) this.future.push(change);
        return change;
    }

    /** Return the change to make again; undefined where there is none. */
    redo() {
        const change = this.future.pop();
        if (change) this.past.push({...change, time: 0});
        return change;
    }
}
