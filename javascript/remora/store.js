// The state of the tab, in one place, with listeners for changes.

import {useEffect, useReducer} from "./vendor/preact.js";

/** @template {object} S */
export class Store {
    /** @param {S} state */
    constructor(state) {
        this.state = state;
        /** @type {Set<() => void>} */
        this.listeners = new Set();
        this.waiting = false;
    }

    /**
     * Change some fields; listeners are told once, after all changes of the moment.
     * @param {Partial<S>} changes
     */
    set(changes) {
        const names = /** @type {(keyof S)[]} */ (Object.keys(changes));
        const differs = names.some((name) => changes[name] !== this.state[name]);
        if (!differs) return;
        this.state = {...this.state, ...changes};
        if (this.waiting) return;
        this.waiting = true;
        queueMicrotask(() => {
            this.waiting = false;
            for (const listener of [...this.listeners]) listener();
        });
    }

    /**
     * Call a listener after every change; return a function that ends it.
     * @param {() => void} listener
     */
    subscribe(listener) {
        this.listeners.add(listener);
        return () => this.listeners.delete(listener);
    }
}

/**
 * Return the store's state, for a component that is drawn again with every change of it.
 * @template {object} S
 * @param {Store<S>} store
 */
export function useStore(store) {
    const [, again] = useReducer(/** @type {(count: number, action: void) => number} */ ((count) => count + 1), 0);
    useEffect(() => store.subscribe(again), [store]);
    return store.state;
}

/**
 * Tell whether two values have the same JSON.
 * @param {unknown} one
 * @param {unknown} other
 */
export function same(one, other) {
    return JSON.stringify(one) === JSON.stringify(other);
}
