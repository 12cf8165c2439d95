"""The tab in a page that is made with gradio: one empty element, which `javascript/remora.js` fills."""

from __future__ import annotations

from typing import Any

MOUNT = '<div id="remora-tab"></div>'


def build_tab() -> Any:
    """Return the tab as gradio Blocks; only what gradio has had since 3.41 is used."""
    import gradio as gr

    with gr.Blocks(analytics_enabled=False) as tab:
        gr.HTML(MOUNT)
    return tab
