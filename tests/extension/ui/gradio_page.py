"""A page as hosts make it, with whatever gradio this runs in, and Remora's tab in it. Run: PORT SERVER.

Nothing but gradio and what it brings is needed: prompts, a button and a gallery under A1111's ids, and the tab's own
module. Remora's routes and the pictures come from a server that runs elsewhere, and are passed on.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]
TAB = ROOT / "extension" / "tab.py"
SCRIPT = ROOT / "javascript" / "remora.js"


def build_tab() -> Any:
    """Remora's own module, without the package around it, which needs torch."""
    spec = importlib.util.spec_from_file_location("remora_tab", TAB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_tab()


def build_page(server: httpx.Client) -> Any:
    """Two tabs, as in hosts: one with the prompt, the other Remora's."""

    def generate(prompt: str, negative: str, steps: float, seed: float) -> Any:
        wanted = {"prompt": prompt, "negative_prompt": negative, "steps": int(steps), "seed": int(seed)}
        answer = server.post("/sdapi/v1/txt2img", json={**wanted, "width": 64, "height": 64, "sampler_name": "DDIM"})
        if answer.status_code != 200:
            return [], answer.json()["detail"]
        images = [Image.open(io.BytesIO(base64.b64decode(image))) for image in answer.json()["images"]]
        return images, answer.json()["info"]

    tab = build_tab()
    with gr.Blocks(analytics_enabled=False) as page:
        with gr.Tab("txt2img"):
            prompt = gr.Textbox(label="Prompt", lines=3, elem_id="txt2img_prompt")
            negative = gr.Textbox(label="Negative prompt", elem_id="txt2img_neg_prompt")
            steps = gr.Slider(1, 50, 2, step=1, label="Steps", elem_id="txt2img_steps")
            seed = gr.Number(7, precision=0, label="Seed", elem_id="txt2img_seed")
            button = gr.Button("Generate", elem_id="txt2img_generate")
            gallery = gr.Gallery(elem_id="txt2img_gallery")
            info = gr.Textbox(label="Info", elem_id="txt2img_info")
        with gr.Tab("img2img"):
            gr.Textbox(label="Prompt", lines=3, elem_id="img2img_prompt")
        with gr.Tab("Remora"):
            tab.render()
        button.click(generate, [prompt, negative, steps, seed], [gallery, info])
    return page


def put_script(head: str) -> None:
    """Have the script in every page, as A1111 does: gradio of old has no way for it."""
    original = gr.routes.templates.TemplateResponse

    def response(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        made.body = made.body.replace(b"</head>", f"{head}</head>".encode())
        made.init_headers()
        return made

    gr.routes.templates.TemplateResponse = response


def main(port: int, address: str) -> None:
    """Serve until stopped."""
    server = httpx.Client(base_url=address, timeout=120)
    app = FastAPI()

    @app.get("/script.js")
    def script() -> Response:
        return Response(SCRIPT.read_bytes(), media_type="text/javascript")

    @app.api_route("/remora/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def passed_on(path: str, request: Request) -> Response:
        kept = {name: value for name, value in request.headers.items() if name in ("content-type", "if-none-match")}
        async with httpx.AsyncClient(base_url=address, timeout=120) as client:
            answer = await client.request(
                request.method,
                f"/remora/{path}",
                params=request.query_params,
                content=await request.body(),
                headers=kept,
            )
        back = {
            name: answer.headers[name] for name in ("content-type", "etag", "cache-control") if name in answer.headers
        }
        return Response(answer.content, answer.status_code, back)

    put_script('<script src="/script.js"></script>')
    page = build_page(server).queue()
    page._queue.sleep_when_free = 0.05  # or an idle page takes a tenth of a core
    gr.mount_gradio_app(app, page, path="/")
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
