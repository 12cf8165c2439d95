// Undo and redo of what the tab does to prompts and to the stack that is always on.

const MOST = 200;
const TOGETHER = 1000; // milliseconds in which changes of one thing, as by a slider, are one

export class History {
    constructor() {
        this.past = [];
        this.future = [];
    }

    /** Remember a change: {target, before, after, key}; of equal keys in a row the first `before` stays. */
    add(change) {
        const last = this.past[this.past.length - 1];
        const now = Date.now();
        if (last && change.key && last.key === change.key && last.target === change.target && now - last.time < TOGETHER) {
            Object.assign(last, {after: change.after, time: now});
        } else {
            this.past.push({...change, time: now});
            if (this.past.length > MOST) this.past.shift();
        }
        this.future = [];
    }

    /** The change to take back, which can be made again afterwards; undefined where there is none. */
    undo() {
        const change = this.past.pop();
        if (change) this.future.push(change);
        return change;
    }

    redo() {
        const change = this.future.pop();
        if (change) this.past.push({...change, time: 0});
        return change;
    }
}
