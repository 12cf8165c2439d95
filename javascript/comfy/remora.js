// Remora Stack in ComfyUI's page: its text is shown as rows. Where this cannot be loaded, the node has the text alone.

const at = (/** @type {string} */ path) => import(new URL(`../../${path}`, import.meta.url).href);
const [{app}, {api}] = await Promise.all([at("scripts/app.js"), at("scripts/api.js")]);
const HEIGHT = 180; // pixels of the rows; more of them are scrolled to

/** Return the names of the LoRA files, without their endings. */
async function names() {
    const answer = await api.fetchApi("/models/loras");
    if (!answer.ok) throw new Error(`ComfyUI answered ${answer.status} to GET models/loras`);
    return (await answer.json()).map((/** @type {string} */ file) =>
        file.replaceAll("\\", "/").replace(/(.)\.[^./]*$/, "$1"),
    );
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
    const show = await openRows(host, locale, await names(), (/** @type {string} */ rows) => {
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
    show(text.value);
    node.setDirtyCanvas(true, true);
}

app.registerExtension({
    name: "Remora.Stack",
    /** @param {any} node */
    nodeCreated(node) {
        if (node.comfyClass === "RemoraStack")
            showRows(node).catch((error) => console.error("Remora: the rows cannot be shown:", error));
    },
});
