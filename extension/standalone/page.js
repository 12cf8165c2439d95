// Ctrl+Enter generates, wherever the focus is; in a dialog it is the dialog's.
document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing) return;
    if (event.composedPath().some((one) => one.localName === "dialog")) return;
    const button = document.getElementById("generate");
    if (!button || button.disabled || document.body.classList.contains("remora-lost")) return;
    event.preventDefault();
    event.stopPropagation();
    // what was typed last is sent when its field is left; typing goes on in it
    let field = document.activeElement;
    while (field?.shadowRoot?.activeElement) field = field.shadowRoot.activeElement;
    field?.blur();
    button.click();
    if (field?.getAttribute("role") !== "listbox") field?.focus({ preventScroll: true }); // gradio's list would open
}, true);

/**
 * Say something above the page until it is over; an empty text takes it away.
 * @param {string} text
 */
function say(text) {
    let line = document.getElementById("remora-said");
    if (!line) {
        line = Object.assign(document.createElement("div"), { id: "remora-said" });
        line.setAttribute("role", "alert");
        document.body.prepend(line);
    }
    line.textContent = text;
}

// The page speaks the language of the tab, which says how to translate what the server says. gradio draws labels once,
// and other texts again: each is remembered in English.
{
    const known = new WeakMap(); // of nodes, what they said in English and what they say now
    let translated = (text) => text;
    const speak = (node) => {
        if (!node.isConnected) return; // it came and went
        const field = node.nodeType === Node.TEXT_NODE ? "data" : "placeholder";
        const now = node[field], trimmed = now?.trim();
        if (!trimmed || node.parentElement.closest("textarea, script, style")) return;
        const english = known.get(node)?.shown === now ? known.get(node).english : now;
        const shown = english.replace(english.trim(), () => translated(english.trim()));
        known.set(node, { english, shown });
        if (shown !== now) node[field] = shown;
    };
    const speakIn = (root) => {
        if (root.nodeType === Node.TEXT_NODE) speak(root);
        if (root.nodeType !== Node.ELEMENT_NODE) return;
        const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) speak(texts.currentNode);
        for (const field of [root, ...root.querySelectorAll("[placeholder]")]) speak(field);
    };
    const watch = new MutationObserver((changes) => {
        for (const { type, target, addedNodes } of changes)
            for (const node of type === "characterData" ? [target] : addedNodes) speakIn(node);
    });
    document.addEventListener("remora:language", ({ detail }) => {
        translated = detail.translated;
        document.documentElement.lang = detail.language;
        const here = JSON.stringify(translated("The picture will be here."));
        document.documentElement.style.setProperty("--remora-picture-here", here); // page.css writes it
        speakIn(document.body);
        watch.observe(document.body, { childList: true, characterData: true, subtree: true });
    });
}

// A parameters text that is pasted, dropped or typed into the prompt is read: the prompt, the settings and the seed
// of its picture take the place of the page's. A text that looks like one is sent to the server, which reads it.
{
    const looksLikeOne = (text) => /(?:^|\n)[^\S\n]*Steps: ?\d+, .*\w: ?/.test(text);
    const inPrompt = (event) => event.target.matches?.("#prompt textarea");
    const understand = () => setTimeout(() => document.getElementById("understand")?.click(), 50); // gradio reads it first
    document.addEventListener("input", (event) => {
        const whole = ["insertFromPaste", "insertFromDrop"].includes(event.inputType);
        if (whole && inPrompt(event) && looksLikeOne(event.target.value)) understand();
    });
    document.addEventListener("change", (event) => { // a typed text is whole when its field is left
        if (inPrompt(event) && looksLikeOne(event.target.value)) understand();
    });

    const textIn = async (file) => {
        if (!file.type.startsWith("image/")) return file.text();
        const image = await new Promise((resolve, reject) => {
            const reader = new FileReader();
            reader.onload = () => resolve(reader.result);
            reader.onerror = () => reject(reader.error);
            reader.readAsDataURL(file);
        });
        const answer = await fetch("sdapi/v1/png-info", {
            method: "POST", body: JSON.stringify({ image }), headers: { "Content-Type": "application/json" },
        });
        const told = await answer.json();
        if (!answer.ok) throw new Error(told.detail);
        return told.info;
    };
    const take = async (file) => {
        try {
            const text = await textIn(file);
            if (!looksLikeOne(text)) throw new Error("it has no parameters text");
            const box = document.querySelector("#prompt textarea");
            box.value = text;
            box.dispatchEvent(new Event("input", { bubbles: true }));
            say("");
            understand();
        } catch (error) {
            say(`${file.name} cannot be used: ${error.message}.`);
        }
    };
    const ofDialog = (event) => event.composedPath().some((one) => one.localName === "dialog");
    const fileOf = (event, data) => (ofDialog(event) ? undefined : data?.files[0]);
    document.addEventListener("dragover", (event) => {
        if (!ofDialog(event) && event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
    document.addEventListener("drop", (event) => {
        const file = fileOf(event, event.dataTransfer);
        if (!file) return;
        event.preventDefault(); // the browser would leave the page for the file
        take(file);
    });
    document.addEventListener("paste", (event) => {
        const file = fileOf(event, event.clipboardData);
        if (!file) return;
        event.preventDefault();
        take(file);
    });
}

// A picture that was being made when the server stopped never comes; a page that is loaded again keeps its inputs.
async function reloadIfIdle() {
    const { state } = await (await fetch("sdapi/v1/progress")).json();
    if (!state.job_count) location.reload();
}

// Remora's tab asks the server every two seconds, and tells here whether it answers
document.addEventListener("remora:server", ({ detail: { answers } }) => {
    document.body.classList.toggle("remora-lost", !answers);
    for (const one of document.querySelectorAll(".remora-start, #progress")) one.inert = !answers;
    say(answers ? "" : "The server does not answer. Start it again; this page goes on by itself.");
    if (!answers) return;
    if (document.getElementById("generate")?.disabled) reloadIfIdle();
    for (const image of document.querySelectorAll("#gallery img, #preview img"))
        if (image.complete && !image.naturalWidth) image.src = image.src; // it was asked for while nobody answered
});

// gradio's gallery gives the focus to a picture that comes: keys would go there, and the page would scroll to it
{
    let inGallery = false; // where the latest click or key was
    for (const kind of ["pointerdown", "keydown"])
        document.addEventListener(kind, (event) => {
            inGallery = Boolean(event.target.closest?.("#gallery"));
        }, true);
    const focus = HTMLElement.prototype.focus;
    HTMLElement.prototype.focus = function (...how) {
        if (inGallery || !this.closest("#gallery")) focus.apply(this, how);
    };
}
