"""OpenAI's client with a server of ours: a chat as a stream, and how much of it was drafted.

Start the server:  paceline serve --model pocket --draft-model pocket-draft
Usage:             pip install openai; python examples/serve_openai.py
"""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"), api_key="none")
model = client.models.list().data[0].id

chunks = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Tell me of the old house at the end of the lane."}],
    seed=7,  # the same seed writes the same text, however it is drafted
    max_tokens=40,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in chunks:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None:
        timings = (chunk.model_extra or {})["timings"]
        print(f"\n\n{chunk.usage.completion_tokens} tokens, {timings['predicted_per_second']:.0f} per second")
        print(f"{timings['draft_n_accepted']} of {timings['draft_n']} drafted tokens were accepted")
