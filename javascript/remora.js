// The tab: the LoRAs found, the stack, and what became of it. Works on `/remora/v1` alone, in whatever page has an
// element `#remora-tab`; the web UI loads this file by itself. Text from outside is only ever set as text.
"use strict";

(() => {
    const POLL = 2000; // milliseconds between two looks at the state, while the tab is seen
    const SAVE_AFTER = 200; // milliseconds without a change
    const SHOWN = 200; // LoRAs in the list at once; the search finds the others
    const KEYS_SHOWN = 20; // of each reason
    const SLIDER = {min: -1, max: 2, step: 0.05};
    const STRENGTHS = [["unet", "UNet"], ["text_encoder", "Text"]];
    // Where web UIs have their prompts.
    const PROMPTS = [
        ["txt2img", "#txt2img_prompt textarea"],
        ["img2img", "#img2img_prompt textarea"],
        ["control", "#control_prompt textarea"],
        ["", "#prompt textarea"],
    ];
    const STATES = {applied: "✓ applied", partly: "◐ partly applied", failed: "✕ failed", missing: "✕ missing"};

    // --- elements ---

    function make(kind, properties = {}, ...children) {
        const element = document.createElement(kind);
        for (const [name, value] of Object.entries(properties)) {
            if (typeof value === "function") {
                element.addEventListener(name, value);
            } else if (name === "class") {
                element.className = value;
            } else if (value === true) {
                element.setAttribute(name, "");
            } else if (value !== false && value !== undefined) {
                element.setAttribute(name, value);
            }
        }
        element.append(...children);
        return element;
    }

    function button(text, label, click, more = {}) {
        return make("button", {type: "button", "aria-label": label, title: label, click, ...more}, text);
    }

    // --- the API ---

    class ApiError extends Error {
        constructor(message, status) {
            super(message);
            this.status = status;
        }
    }

    class Api {
        constructor() {
            this.base = `${location.pathname.replace(/\/*$/, "")}/remora/v1/`;
            this.authorization = null; // of users who were asked for it; forgotten with the page
        }

        logIn(user, password) {
            const bytes = new TextEncoder().encode(`${user}:${password}`);
            this.authorization = `Basic ${btoa(String.fromCharCode(...bytes))}`;
        }

        async ask(method, path, body) {
            const headers = {Accept: "application/json"};
            if (body !== undefined) headers["Content-Type"] = "application/json";
            if (this.authorization) headers.Authorization = this.authorization;
            let answer;
            try {
                answer = await fetch(this.base + path, {
                    method, headers, credentials: "same-origin", cache: "no-cache",
                    body: body === undefined ? undefined : JSON.stringify(body),
                });
            } catch {
                throw new ApiError("The web UI does not answer.", 0);
            }
            let data = null;
            try {
                data = await answer.json();
            } catch {
                data = null; // a proxy's page, say
            }
            if (answer.ok && data !== null) return data;
            const detail = data && typeof data.detail === "string" ? data.detail : "";
            throw new ApiError(detail || `The web UI answered ${answer.status} to ${method} ${path}.`, answer.status);
        }
    }

    // --- prompts ---

    function tagOf(entry) {
        const both = entry.unet === entry.text_encoder;
        return `<lora:${entry.name}:${both ? entry.unet : `${entry.text_encoder}:${entry.unet}`}>`;
    }

    function promptBoxes() {
        return PROMPTS.map(([name, selector]) => [name, document.querySelector(selector)]).filter(([, box]) => box);
    }

    // The prompt with this tag in place of the one that it has for the same LoRA, or at its end.
    function withTag(prompt, entry) {
        const name = entry.name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
        const present = new RegExp(`<(?:lora|lyco):\\s*${name}\\s*(?::[^<>]*)?>`, "i");
        const tag = tagOf(entry);
        if (present.test(prompt)) return prompt.replace(present, () => tag);
        return prompt.trim() ? `${prompt.trimEnd()} ${tag}` : tag;
    }

    function setPrompt(box, text) {
        box.value = text;
        box.dispatchEvent(new Event("input", {bubbles: true})); // what typing does; the page knows by it
    }

    async function copy(text) {
        if (navigator.clipboard && window.isSecureContext) {
            try {
                await navigator.clipboard.writeText(text);
                return true;
            } catch {
                // not allowed; the old way may be
            }
        }
        const former = document.activeElement;
        const box = make("textarea", {class: "remora-offscreen", "aria-hidden": "true"});
        box.value = text;
        document.body.append(box);
        box.select();
        const done = document.execCommand("copy");
        box.remove();
        if (former) former.focus();
        return done;
    }

    // --- one row of the stack ---

    class Row {
        constructor(tab, entry) {
            this.tab = tab;
            this.entry = entry;
            this.tied = entry.unet === entry.text_encoder;
            this.shown = "";
            this.fields = {};
            this.state = make("div", {class: "rt-state"});
            this.on = make("input", {type: "checkbox", "aria-label": `${entry.name} on`, change: () => {
                this.entry.on = this.on.checked;
                this.changed();
            }});
            this.tie = button("=", `Same strength for both, ${entry.name}`, () => {
                this.tied = !this.tied;
                if (this.tied) this.entry.text_encoder = this.entry.unet;
                this.changed();
            }, {class: "rt-small rt-tie"});
            this.up = button("↑", `Move ${entry.name} up`, () => tab.move(this, -1), {class: "rt-small"});
            this.down = button("↓", `Move ${entry.name} down`, () => tab.move(this, 1), {class: "rt-small"});
            const remove = button("✕", `Remove ${entry.name}`, () => tab.remove(this), {class: "rt-small"});
            this.element = make("li", {class: "rt-row"},
                make("div", {class: "rt-row-head"},
                    make("label", {class: "rt-name"}, this.on, make("span", {}, entry.name)),
                    this.tie, this.up, this.down, remove),
                ...STRENGTHS.map(([field, title]) => this.strength(field, title)),
                this.state);
            this.show();
        }

        strength(field, title) {
            const what = `${title} strength of ${this.entry.name}`;
            const slider = make("input", {type: "range", ...SLIDER, "aria-label": `${what}, slider`,
                input: () => this.set(field, slider.valueAsNumber)});
            const number = make("input", {type: "number", step: SLIDER.step, "aria-label": what,
                input: () => this.typed(field), blur: () => this.show()});
            const problem = make("span", {class: "rt-problem", role: "alert"});
            this.fields[field] = {slider, number, problem};
            return make("div", {class: "rt-strength"}, make("span", {"aria-hidden": "true"}, title), slider, number, problem);
        }

        typed(field) {
            const {number, problem} = this.fields[field];
            const good = Number.isFinite(number.valueAsNumber);
            number.setAttribute("aria-invalid", String(!good));
            problem.textContent = good ? "" : "Type a number, as in 0.8";
            if (good) this.set(field, number.valueAsNumber);
        }

        set(field, value) {
            this.entry[field] = value;
            if (this.tied) for (const [other] of STRENGTHS) this.entry[other] = value;
            this.changed();
        }

        changed() {
            this.show();
            this.tab.save();
        }

        show() {
            this.on.checked = this.entry.on;
            this.element.classList.toggle("rt-off", !this.entry.on);
            this.tie.setAttribute("aria-pressed", String(this.tied));
            for (const [field] of STRENGTHS) {
                const {slider, number, problem} = this.fields[field];
                slider.value = this.entry[field];
                if (document.activeElement === number) continue; // what is being typed stays as it is typed
                number.value = this.entry[field];
                number.removeAttribute("aria-invalid");
                problem.textContent = "";
            }
        }

        showState(lora) {
            const shown = JSON.stringify(lora ?? null);
            if (shown === this.shown) return; // what is open in it stays open
            this.shown = shown;
            fillState(this.state, lora);
        }
    }

    function fillState(element, lora) {
        element.replaceChildren();
        element.className = `rt-state${lora ? ` rt-${lora.state}` : ""}`;
        if (!lora) return;
        const layers = lora.state === "applied" ? `${lora.hit} of ${lora.layers} layers` : lora.reason;
        element.append(make("span", {}, `${STATES[lora.state] ?? lora.state}: ${layers}`));
        if (lora.warning) element.prepend(make("p", {class: "rt-warning", role: "alert"}, `⚠ ${lora.warning}`));
        const about = aboutFile(lora);
        if (about) element.append(make("p", {class: "rt-hint"}, about));
        const reasons = Object.entries(lora.unused);
        if (!reasons.length) return;
        const list = make("ul", {});
        for (const [reason, keys] of reasons) {
            const shown = keys.slice(0, KEYS_SHOWN).map((key) => lora.details[key] ? `${key} (${lora.details[key]})` : key);
            const more = keys.length > KEYS_SHOWN ? ` … and ${keys.length - KEYS_SHOWN} more` : "";
            list.append(make("li", {}, `${reason}: ${shown.join(", ")}${more}`));
        }
        element.append(make("details", {}, make("summary", {}, "Which keys"), list));
    }

    // What a file is: kinds, ranks, format, and what it was made for and from.
    function aboutFile(lora) {
        const kinds = Object.entries(lora.kinds).map(([kind, count]) => `${count} ${kind}`).join(", ");
        const rank = lora.ranks ? `rank ${[...new Set(lora.ranks)].join(" to ")}` : "";
        const family = lora.family ? `${lora.family.sure ? "for" : "probably for"} ${lora.family.title}` : "";
        const from = lora.base_model ? `made from ${lora.base_model}` : "";
        return [kinds, rank, lora.format, family, from].filter(Boolean).join(" · ");
    }

    // --- the tab ---

    class Tab {
        constructor(element) {
            this.root = element;
            this.api = new Api();
            this.loras = [];
            this.rows = [];
            this.alwaysOn = false;
            this.state = null;
            this.pending = null; // the timer of a change that is not kept yet
            this.seen = false;
            this.saving = Promise.resolve();
            this.build();
        }

        build() {
            this.notices = make("div", {class: "rt-notices", role: "status"});
            this.error = make("div", {class: "rt-error", role: "alert", hidden: true});
            this.login = this.buildLogin();
            this.root.classList.add("rt");
            this.root.replaceChildren(this.notices, this.error, this.login,
                make("div", {class: "rt-panes"}, this.buildLibrary(), this.buildStack()));
        }

        buildLibrary() {
            this.search = make("input", {type: "search", "aria-label": "Search LoRA", placeholder: "Search LoRA",
                autocomplete: "off", input: () => this.showLibrary()});
            this.count = make("p", {class: "rt-hint", role: "status"});
            this.list = make("ul", {class: "rt-list", "aria-label": "LoRA found"});
            return make("section", {"aria-label": "LoRA files"},
                make("h3", {}, "LoRA files"),
                make("div", {class: "rt-line"}, this.search,
                    button("Refresh", "Look for LoRA files again", () => this.tell(() => this.load("POST", "refresh")))),
                this.count, this.list);
        }

        buildStack() {
            this.always = make("input", {type: "checkbox", change: () => {
                this.alwaysOn = this.always.checked;
                this.save();
            }});
            this.list2 = make("ol", {class: "rt-rows", "aria-label": "Stack"});
            this.empty = make("p", {class: "rt-hint"}, "Choose a LoRA from the list to begin a stack.");
            this.inserts = make("span", {class: "rt-line"});
            this.said = make("p", {class: "rt-hint", role: "status"});
            this.byHand = make("textarea", {class: "rt-by-hand", readonly: true, hidden: true, rows: 2,
                "aria-label": "The stack as a prompt"});
            this.others = make("ul", {class: "rt-others", "aria-label": "Other LoRA of the latest picture"});
            this.othersHead = make("h4", {hidden: true}, "Others in the latest picture");
            return make("section", {"aria-label": "Stack of LoRA"},
                make("h3", {}, "Stack"),
                make("label", {class: "rt-always"}, this.always,
                    make("span", {}, "Always on"),
                    make("span", {class: "rt-hint"},
                        "Every picture gets these besides its prompt's; where a prompt names one of them, its prompt counts.")),
                this.list2, this.empty,
                make("div", {class: "rt-line"},
                    button("Copy as prompt", "Copy the stack as a prompt", () => this.copyAsPrompt()), this.inserts),
                this.said, this.byHand, this.othersHead, this.others);
        }

        buildLogin() {
            const user = make("input", {type: "text", autocomplete: "username", required: true});
            const password = make("input", {type: "password", autocomplete: "current-password", required: true});
            const enter = (event) => {
                event.preventDefault();
                this.api.logIn(user.value, password.value);
                this.start();
            };
            return make("form", {class: "rt-login rt-line", hidden: true, submit: enter},
                make("label", {}, "User ", user), make("label", {}, "Password ", password),
                make("button", {type: "submit"}, "Log in"));
        }

        // Runs something that asks the API; what goes wrong is shown in place.
        async tell(work) {
            try {
                const result = await work();
                this.error.hidden = true;
                this.login.hidden = true;
                return result;
            } catch (error) {
                if (!(error instanceof ApiError)) throw error;
                if (this.error.hidden || this.error.textContent !== error.message) this.error.textContent = error.message;
                this.error.hidden = false;
                if (error.status === 401 && error.message.includes("password")) this.login.hidden = false;
                return null;
            }
        }

        async start() {
            await this.tell(async () => {
                await this.load("GET", "loras");
                if (this.pending === null) this.showStack(await this.api.ask("GET", "stack"));
                await this.look();
            });
        }

        async load(method, path) {
            this.loras = (await this.api.ask(method, path)).loras;
            this.showLibrary();
        }

        async look() {
            this.state = await this.api.ask("GET", "state");
            this.showState();
        }

        // Called again and again; asks only while somebody looks.
        async tick() {
            const seen = !document.hidden && this.root.getClientRects().length > 0;
            const came = seen && !this.seen;
            this.seen = seen;
            if (!seen) return;
            this.showPromptBoxes();
            if (came) await this.start();
            else if (this.login.hidden && this.pending === null) await this.poll();
        }

        async poll() {
            try {
                await this.look();
                if (this.lost) this.error.hidden = true;
                this.lost = false;
            } catch (error) {
                if (!(error instanceof ApiError)) throw error;
                if (!this.lost) this.error.textContent = error.message;
                this.lost = true;
                this.error.hidden = false;
            }
        }

        // --- library ---

        found() {
            const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
            return this.loras.filter((lora) => {
                const text = `${lora.folder}/${lora.name} ${lora.alias}`.toLowerCase();
                return words.every((word) => text.includes(word));
            });
        }

        showLibrary() {
            const found = this.found();
            this.list.replaceChildren(...found.slice(0, SHOWN).map((lora) => this.item(lora)));
            const rest = found.length - SHOWN;
            if (!this.loras.length) this.count.textContent = "No LoRA files were found.";
            else if (!found.length) this.count.textContent = `No LoRA has “${this.search.value.trim()}” in its name.`;
            else if (rest > 0) this.count.textContent = `${found.length} LoRA; the first ${SHOWN} are shown, search for the others.`;
            else this.count.textContent = `${found.length} LoRA`;
        }

        item(lora) {
            const name = make("span", {class: "rt-item-name"}, lora.name);
            const about = [lora.alias === lora.name ? "" : lora.alias, lora.folder, lora.base_model, size(lora.size)].filter(Boolean).join(" · ");
            if (!lora.readable) {
                return make("li", {class: "rt-item rt-unreadable"},
                    make("div", {class: "rt-add"}, name, make("span", {class: "rt-hint"}, lora.reason)));
            }
            const label = `Add ${lora.name} to the stack`;
            const add = make("button", {type: "button", class: "rt-add", title: label, "aria-label": label,
                click: () => this.add(lora.name)}, name, make("span", {class: "rt-hint"}, about));
            const insert = button("Insert", `Insert ${lora.name} into the prompt`, () => this.insertOne(lora.name),
                {class: "rt-small rt-insert"});
            return make("li", {class: "rt-item"}, add, insert);
        }

        fresh(name) {
            const strength = this.state ? this.state.default_multiplier : 1;
            return {name, on: true, unet: strength, text_encoder: strength};
        }

        // --- stack ---

        showStack(stack) {
            this.alwaysOn = stack.always_on;
            this.stackProblem = stack.problem;
            const former = new Map(this.rows.map((row) => [row.entry.name, row]));
            this.rows = stack.entries.map((entry) => {
                const row = former.get(entry.name);
                if (!row) return new Row(this, entry);
                row.entry = entry;
                if (entry.unet !== entry.text_encoder) row.tied = false;
                row.show();
                return row;
            });
            this.showRows();
        }

        showRows() {
            const focused = document.activeElement;
            const inside = this.list2.contains(focused);
            this.list2.replaceChildren(...this.rows.map((row) => row.element));
            if (inside && this.list2.contains(focused)) focused.focus();
            this.rows.forEach((row, index) => {
                row.up.disabled = index === 0;
                row.down.disabled = index === this.rows.length - 1;
            });
            this.always.checked = this.alwaysOn;
            this.empty.hidden = this.rows.length > 0;
            this.showState();
        }

        add(name) {
            let row = this.rows.find((one) => one.entry.name === name);
            if (!row) {
                row = new Row(this, this.fresh(name));
                this.rows.push(row);
                this.showRows();
                this.save();
            }
            row.element.scrollIntoView({block: "nearest"});
            row.fields.unet.slider.focus({preventScroll: true});
        }

        move(row, by) {
            const from = this.rows.indexOf(row);
            const to = from + by;
            if (to < 0 || to >= this.rows.length) return;
            this.rows.splice(to, 0, ...this.rows.splice(from, 1));
            this.showRows();
            const moved = by < 0 ? row.up : row.down;
            (moved.disabled ? (by < 0 ? row.down : row.up) : moved).focus();
            this.save();
        }

        remove(row) {
            const index = this.rows.indexOf(row);
            this.rows.splice(index, 1);
            this.showRows();
            const next = this.rows[Math.min(index, this.rows.length - 1)];
            (next ? next.on : this.search).focus();
            this.save();
        }

        entries() {
            return this.rows.map((row) => ({...row.entry}));
        }

        save() {
            clearTimeout(this.pending);
            this.pending = setTimeout(() => {
                this.pending = null;
                // one after the other: the last change is the last that arrives
                this.saving = this.saving.then(() => this.tell(() => this.put()));
            }, SAVE_AFTER);
        }

        async put() {
            this.said.textContent = "";
            const stack = await this.api.ask("PUT", "stack", {always_on: this.alwaysOn, entries: this.entries()});
            this.stackProblem = stack.problem;
            this.showNotices();
            this.said.textContent = "Saved.";
        }

        // --- state ---

        showState() {
            const loras = this.state ? this.state.loras : [];
            const names = new Set(this.rows.map((row) => row.entry.name));
            for (const row of this.rows) row.showState(loras.find((lora) => lora.name === row.entry.name));
            const others = loras.filter((lora) => !names.has(lora.name));
            const shown = JSON.stringify(others);
            if (shown !== this.othersShown) {
                this.othersShown = shown;
                this.othersHead.hidden = others.length === 0;
                this.others.replaceChildren(...others.map((lora) => {
                    const state = make("div", {class: "rt-state"});
                    fillState(state, lora);
                    return make("li", {class: "rt-row"}, make("div", {class: "rt-row-head"},
                        make("span", {class: "rt-name"}, lora.name)), state);
                }));
            }
            this.showNotices();
        }

        showNotices() {
            const texts = [this.stackProblem];
            if (this.state) {
                if (!this.state.enabled) {
                    texts.push("Remora is off in the settings: the web UI applies LoRA itself, and this stack has no effect.");
                }
                texts.push(...this.state.conflicts, ...this.state.notes);
            }
            const wanted = texts.filter(Boolean);
            const shown = JSON.stringify(wanted);
            if (shown === this.noticesShown) return;
            this.noticesShown = shown;
            this.notices.replaceChildren(...wanted.map((text) => make("p", {class: "rt-notice"}, text)));
        }

        // --- prompts ---

        showPromptBoxes() {
            const boxes = promptBoxes();
            const shown = boxes.map(([name]) => name).join();
            this.root.classList.toggle("rt-has-prompt", boxes.length > 0);
            if (shown === this.boxesShown) return;
            this.boxesShown = shown;
            this.inserts.replaceChildren(...boxes.map(([name]) => {
                const text = name ? `Insert into ${name}` : "Insert into prompt";
                return button(text, name ? `Insert the stack into the prompt of ${name}` : "Insert the stack into the prompt",
                    () => this.insertAll(name));
            }));
        }

        used() {
            return this.entries().filter((entry) => entry.on);
        }

        insertAll(name) {
            const found = promptBoxes().find(([other]) => other === name);
            if (!found) return;
            setPrompt(found[1], this.used().reduce(withTag, found[1].value));
            this.said.textContent = `${this.used().length} LoRA inserted.`;
        }

        insertOne(name) {
            const boxes = promptBoxes().map(([, box]) => box);
            const box = boxes.find((one) => one.getClientRects().length) ?? boxes[0];
            if (!box) return;
            setPrompt(box, withTag(box.value, this.fresh(name)));
            this.said.textContent = `${name} inserted.`;
        }

        async copyAsPrompt() {
            const text = this.used().map(tagOf).join(" ");
            const done = text !== "" && await copy(text);
            this.byHand.hidden = done || text === "";
            this.byHand.value = text;
            if (done) this.said.textContent = `Copied: ${text}`;
            else if (text) this.said.textContent = "The browser does not allow it; copy it from here:";
            else this.said.textContent = "No LoRA of the stack is on.";
        }
    }

    function size(bytes) {
        if (bytes < 1024) return `${bytes} B`;
        return bytes < 1024 ** 2 ? `${(bytes / 1024).toFixed(0)} KB` : `${(bytes / 1024 ** 2).toFixed(0)} MB`;
    }

    // --- the page ---

    let tab = null;

    function mount() {
        const element = document.getElementById("remora-tab");
        if (!element || (tab && tab.root === element)) return;
        tab = new Tab(element);
        tab.tick();
    }

    // Pages make their elements late, and some make them anew.
    function begin() {
        let waiting = false;
        new MutationObserver(() => {
            if (waiting) return;
            waiting = true;
            setTimeout(() => {
                waiting = false;
                mount();
            }, 100);
        }).observe(document.body, {childList: true, subtree: true});
        mount();
        setInterval(() => tab && tab.root.isConnected && tab.tick(), POLL);
        document.addEventListener("click", () => setTimeout(() => tab && !tab.seen && tab.tick(), 50)); // a tab was chosen
    }

    if (document.body) begin();
    else document.addEventListener("DOMContentLoaded", begin);
})();
