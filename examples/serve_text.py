"""Stream a model's text over HTTP: MODEL=FOLDER uvicorn serve_text:app (pip install fastapi uvicorn)"""

import os
from threading import Thread

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

import cosformer.hf  # noqa: F401  (the Auto classes then know our models, and converted and linearized ones)

model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL"]).eval()
tokenizer = AutoTokenizer.from_pretrained(os.environ["MODEL"])
app = FastAPI()


@app.get("/generate")
def generate(prompt: str, tokens: int = 200) -> StreamingResponse:
    inputs = tokenizer(prompt, return_tensors="pt")
    if not 0 < tokens <= model.config.max_position_embeddings - inputs["input_ids"].shape[1]:
        raise HTTPException(422, f"prompt and tokens exceed {model.config.max_position_embeddings} positions")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    options = {"max_new_tokens": tokens, "do_sample": True, "top_p": 0.95, "streamer": streamer}
    Thread(target=model.generate, kwargs={**inputs, **options}).start()
    return StreamingResponse(streamer, media_type="text/plain")
