// Remora Stack in ComfyUI's page: its text is shown as rows. Where this cannot be loaded, the node has the text alone.

const at = (/** @type {string} */ path) => import(new URL(`../../${path}`, import.meta.url).href);
const [{app}, {api}] = await Promise.all([at("scripts/app.js"), at("scripts/api.js")]);
const HEIGHT = 180; // pixels of the rows; more of them are scrolled to

/** @type {Set<(files: string[]) => void>} */
const takers = new Set(); // of the list of LoRA files, for each node

/** Return the LoRA files, relative to their folders. */
async function loras() {
    const answer = await api.fetchApi("/models/loras");
    if (!answer.ok) throw new Error(`ComfyUI answered ${answer.status} to GET models/loras`);
    return (await answer.json()).map((/** @type {string} */ file) => file.replaceAll("\\", "/"));
}

/**
 * Show the text of a node as rows.
 * @param {any} node
 */
async function showRows(node) {
    const text = node.widgets.find((/** @type {any} */ widget) => widget.name === "rows");
    const {openRows} = await at("remora/ui/comfy.js");
    const locale = app.extensionManager?.setting?.get("Comfy.Locale") ?? "";
    const host = document.createElement("div");
    const files = await loras();
    const show = await openRows(host, locale, (/** @type {string} */ rows) => {
        text.value = rows;
        node.setDirtyCanvas(true, true);
        const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker; // of ComfyUI's undo
        tracker?.[tracker.captureCanvasState ? "captureCanvasState" : "checkState"]();
    });
    Object.assign(text, {hidden: true, computeSize: () => [0, -4]});
    text.options.hidden = true;
    const own = node.addDOMWidget("editor", "REMORA_ROWS", host, {serialize: false, getMinHeight: () => HEIGHT});
    own.serialize = false; // in a workflow, too
    const configured = node.onConfigure;
    node.onConfigure = (/** @type {any[]} */ ...given) => {
        configured?.apply(node, given);
        show(text.value);
    };
    const take = (/** @type {string[]} */ others) => show(text.value, others);
    const removed = node.onRemoved;
    node.onRemoved = (/** @type {any[]} */ ...given) => {
        removed?.apply(node, given);
        takers.delete(take);
    };
    takers.add(take);
    take(files);
    node.setDirtyCanvas(true, true);
}

app.registerExtension({
    name: "Remora.Stack",
    /** @param {any} node */
    nodeCreated(node) {
        if (node.comfyClass === "RemoraStack")
            showRows(node).catch((error) => console.error("Remora: the rows cannot be shown:", error));
    },
    async refreshComboInNodes() {
        const files = await loras();
        for (const take of takers) take(files);
    },
});
