"""The tab in a gradio page: one element, which `javascript/remora.js` fills."""

from __future__ import annotations

from typing import Any

MOUNT = '<div id="remora-tab">Loading the tab of Remora …</div>'
"""The element. Its text is shown until the script gives it a shadow root."""


def build_tab() -> Any:
    """Return the tab as gradio Blocks, built only from features that gradio 3.41 has."""
    import gradio as gr

    with gr.Blocks(analytics_enabled=False) as tab:
        gr.HTML(MOUNT)
    return tab
