"""A run for people: Markdown, and one page with pictures."""
