// Ctrl+Enter generates, wherever the focus is; in a dialog it is the dialog's.
document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing) return;
    if (event.composedPath().some((one) => one.localName === "dialog")) return;
    const button = document.getElementById("generate");
    if (!button || button.disabled) return;
    event.preventDefault();
    event.stopPropagation();
    // what was typed last is sent when its field is left; typing goes on in it
    let field = document.activeElement;
    while (field?.shadowRoot?.activeElement) field = field.shadowRoot.activeElement;
    field?.blur();
    button.click();
    if (field?.getAttribute("role") !== "listbox") field?.focus({ preventScroll: true }); // gradio's list would open
}, true);

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
