"""An HTTP server that speaks OpenAI's protocol: any model that we open, for tools that know nothing of us."""
