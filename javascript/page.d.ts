/** The settings of a web UI of A1111's family, which its page keeps in a variable; empty until they are loaded. */
declare const opts: {[name: string]: unknown} | undefined;

/** Calls a function soon after each change of such a page. */
declare const onAfterUiUpdate: ((callback: () => void) => void) | undefined;
