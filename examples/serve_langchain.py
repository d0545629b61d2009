"""LangChain with a server of ours: one chain, its answer whole and as a stream.

Start the server:  paceline serve --model pocket --draft-model pocket-draft
Usage:             pip install langchain-openai; python examples/serve_langchain.py
"""

import os

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key="none",
    model="pocket",
    seed=7,
    max_tokens=40,
    extra_body={"method": "auto"},  # fields of ours: how this text is drafted
)
chain = ChatPromptTemplate.from_messages([("system", "You tell tales."), ("user", "A tale of {hero}.")]) | chat

whole = chain.invoke({"hero": "a fox"})
print(whole.content)
print(whole.usage_metadata["output_tokens"], "tokens")

streamed = "".join(chunk.content for chunk in chain.stream({"hero": "a fox"}))
print("the stream says the same:", streamed == whole.content)
