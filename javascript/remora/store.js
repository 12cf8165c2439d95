// What the tab knows, in one place; whoever shows a part of it is told when it changed.

import {useEffect, useReducer} from "./vendor/preact.js";

export class Store {
    constructor(state) {
        this.state = state;
        this.listeners = new Set();
        this.waiting = false;
    }

    /** Change some fields; listeners are told once, after all changes of the moment. */
    set(changes) {
        const differs = Object.keys(changes).some((name) => changes[name] !== this.state[name]);
        if (!differs) return;
        this.state = {...this.state, ...changes};
        if (this.waiting) return;
        this.waiting = true;
        queueMicrotask(() => {
            this.waiting = false;
            for (const listener of [...this.listeners]) listener();
        });
    }

    subscribe(listener) {
        this.listeners.add(listener);
        return () => this.listeners.delete(listener);
    }
}

/** The store's state, for a component that is drawn again with every change of it. */
export function useStore(store) {
    const [, again] = useReducer((count) => count + 1, 0);
    useEffect(() => store.subscribe(again), [store]);
    return store.state;
}
